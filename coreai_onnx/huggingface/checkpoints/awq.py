"""The format of AWQ (AutoAWQ, version ``gemm``), of 4 bits.

``qweight`` is int32 ``[inputs, outputs / 8]``, ``qzeros`` is ``[groups, outputs / 8]``; the eight
codes of a word are those of the outputs 0, 2, 4, 6, 1, 3, 5, 7; ``scales`` is
``[groups, outputs]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    LayerWeight,
    of_codes,
    unpacked_rows,
)
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings

_BITS = 4
# The order in which the GPU kernels of AWQ unpack two codes at a time.
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of eight outputs."""
_KNOWN = COMMON | frozenset(
    # Zero points are in the files, also of symmetric codes; the last ones are of calibration and of
    # kernels of the library.
    "version format bits w_bit group_size q_group_size zero_point sym method lm_head desc_act meta "
    "checkpoint_format pack_dtype backend fuse_max_seq_len do_fuse modules_to_fuse exllama_config "
    "tokenizer dataset damp_percent batch_size true_sequential act_group_aware model_seqlen "
    "cache_block_outputs pad_token_id max_input_length".split()
)


def check(settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint."""
    check_settings("AWQ", settings, _KNOWN)
    version = str(settings.get("version") or settings.get("format") or "gemm").lower()
    bits = settings.get("bits", settings.get("w_bit", _BITS))
    if version != "gemm" or bits != _BITS:
        raise ModelSourceError(
            f"AWQ: the version must be 'gemm' with {_BITS} bits, got {version!r} with {bits}"
        )


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer; None if it is in floating point."""
    packed = tensors.get(f"{path}.qweight")
    if packed is None:
        return None
    outputs, _ = shape
    size = settings.get("group_size", settings.get("q_group_size"))
    # The file has a column for each output; matrices here have a row.
    scales = tensors[f"{path}.scales"].T.contiguous()
    codes = _unpacked(packed, outputs).T.contiguous()
    zeros = _unpacked(tensors[f"{path}.qzeros"], outputs).T.contiguous()
    return LayerWeight(of_codes(codes, scales, _BITS, size, zero_points=zeros))


def _unpacked(words: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the codes of words in the order of the outputs, uint8 ``[rows, columns]``."""
    codes = unpacked_rows(words, _BITS, columns)
    words_of_codes: torch.Tensor = codes.unflatten(1, (-1, len(_PLACES)))
    return words_of_codes[..., list(_PLACES)].flatten(1)
