"""The format of HQQ.

``W_q`` holds the codes of groups of neighbors, uint8 or int32 ``[groups / parts, group_size]``: the
first part of the groups is in the highest bits of all words. ``scale`` and ``zero``, floating, have
an element for each group. ``nbits``, ``shape`` and others are settings of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    LayerWeight,
    by_rows,
    of_codes,
)
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings

_SHIFTS = {
    8: (0,),
    6: (0,),
    5: (0,),
    4: (4, 0),
    # Ten codes in 32 bits leave the two highest unused.
    3: (27, 24, 21, 18, 15, 12, 9, 6, 3, 0),
    2: (6, 4, 2, 0),
}
"""Where the codes of a word are, by the size of a code."""
_NESTED = ("quant_scale", "quant_zero")
# Each layer describes itself.
check = partial(check_settings, "HQQ", allowed=COMMON | {"quant_config", "skip_modules"})


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer; None if it is in floating point."""
    del settings
    words = tensors.get(f"{path}.W_q")
    if words is None:
        return None
    bits, axis = (int(tensors[f"{path}.{name}"]) for name in ("nbits", "axis"))
    stored = tuple(tensors[f"{path}.shape"].tolist())
    # Scales and zero points that are quantized themselves are further tensors of another layout.
    nested = [name for name in _NESTED if bool(tensors.get(f"{path}.{name}"))]
    whole = words.dtype in (torch.uint8, torch.int32)
    # Along axis 0 a group is a part of a column, and linear_nbits has groups in rows.
    if bits not in _SHIFTS or axis != 1 or nested or not whole or stored != shape:
        raise ModelSourceError(
            f"HQQ with {bits} bits, axis={axis}, {words.dtype}, shape {list(stored)}, {nested} is "
            f"not supported, only {sorted(_SHIFTS)} bits, axis=1, integers, shape {list(shape)}"
        )
    parts = [(words >> shift) & ((1 << bits) - 1) for shift in _SHIFTS[bits]]
    (rows, columns), size = shape, words.shape[1]
    # The last word of a part may hold padding, which the slice removes.
    codes = torch.cat(parts).to(torch.uint8).flatten()[: rows * columns].view(shape)
    scales, zeros = (
        by_rows(tensors[f"{path}.{name}"].flatten(), shape, size) for name in ("scale", "zero")
    )
    group = columns // scales.shape[1]
    return LayerWeight(of_codes(codes, scales, bits, group, zero_points=zeros))
