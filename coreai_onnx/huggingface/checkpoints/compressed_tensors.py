"""The format ``compressed-tensors`` of llm-compressor.

``pack-quantized``: ``weight_packed`` is int32, a bit stream along the inputs, with
``2 ** (bits - 1)`` added to each code; ``weight_zero_point`` is packed along the outputs.
``int-quantized`` and ``naive-quantized``: ``weight`` is int8 ``[outputs, inputs]``.
``float-quantized``, ``mxfp8-quantized``: ``weight`` is float8. ``nvfp4-pack-quantized`` and
``mxfp4-pack-quantized``: ``weight_packed`` is uint8, two numbers of 4 bits with the first in the
low ones; scales are divided by ``weight_global_scale``. In all of them ``weight_scale`` is
``[outputs, groups]``, or has one element, or one for each block; in uint8 it is an exponent.
``weight_g_idx`` has the group of each input; ``input_scale``, ``input_zero_point`` and
``input_global_scale`` are those of the inputs, if they are rounded with static scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.float_codes import (
    FLOAT8,
    float4_matrix,
    float8_matrix,
    scale_values,
)
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    LayerWeight,
    PackedMatrix,
    check_bits,
    of_codes,
    of_stream,
    unpacked_rows,
)
from coreai_onnx.huggingface.checkpoints.rounded_activations import ActivationScheme, Rounding
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings, matches

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "naive-quantized",
    "float-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
)
_KNOWN = COMMON | frozenset(
    "config_groups format ignore version quantization_status global_compression_ratio "
    "run_compressed use_optimized_inference sparsity_config".split()
)
_GROUP = frozenset("targets weights input_activations format".split())
_WEIGHTS = frozenset(
    # The dtypes and shapes of the tensors say the same as the last ones.
    "num_bits type symmetric strategy group_size actorder observer observer_kwargs "
    "block_structure scale_dtype zp_dtype".split()
)
_LAYER = "Linear"


def check(settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint."""
    check_settings("compressed-tensors", settings, _KNOWN)
    sparsity = (settings.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise ModelSourceError(f"compressed-tensors: sparsity {sparsity!r} is not supported")
    _check_format(settings.get("format"))
    for name, group in (settings.get("config_groups") or {}).items():
        if not isinstance(group, Mapping):
            raise ModelSourceError(
                f"compressed-tensors: config_groups.{name} has no settings, only the name of a "
                "preset; save the checkpoint again with a later version of the library"
            )
        check_settings(f"compressed-tensors, config_groups.{name}", group, _GROUP)
        check_settings(
            f"compressed-tensors, config_groups.{name}.weights",
            group.get("weights") or {},
            _WEIGHTS,
        )
        _check_format(group.get("format") or settings.get("format"))
        ActivationScheme.of(group.get("input_activations"))


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer; None if it is in floating point."""
    if any(_names(name, path) for name in settings.get("ignore") or ()):
        return None
    group = _group(path, settings)
    stored = tensors.get(f"{path}.weight_scale")
    if stored is None:
        # A float weight would be exported without the rounding, and return other numbers.
        if group.get("input_activations") and not group.get("weights"):
            raise ModelSourceError("rounded inputs of a layer with a float weight")
        return None
    weights = group.get("weights") or {}
    packed = tensors.get(f"{path}.weight_packed")
    scales = _by_rows(scale_values(stored), shape[0])
    if packed is not None and weights.get("type") == "float":
        total = tensors.get(f"{path}.weight_global_scale")
        # MXFP4 has no scale for the whole tensor.
        scales = scales if total is None else scales / total.float()
        matrix = float4_matrix(packed, scales, shape[1])
    elif packed is not None:
        matrix = _of_words(tensors, path, packed, scales, weights, shape)
    else:
        matrix = _of_bytes(tensors, path, scales, weights)
    return LayerWeight(matrix, _rounding(tensors, path, group))


def _of_words(
    tensors: Checkpoint,
    path: str,
    packed: torch.Tensor,
    scales: torch.Tensor,
    weights: Mapping[str, Any],
    shape: tuple[int, int],
) -> PackedMatrix:
    """Return a weight of integers packed into words."""
    bits, (outputs, columns) = check_bits(weights.get("num_bits", 8)), shape
    zeros = tensors.get(f"{path}.weight_zero_point")
    zeros = None if zeros is None else _unpacked(zeros.T, bits, outputs).T.contiguous()
    groups, size = tensors.get(f"{path}.weight_g_idx"), _group_size(weights)
    # As a stream, the codes need not be unpacked and packed again.
    if packed.shape[1] == -(-columns * bits // 32):
        return of_stream(packed, scales, bits, columns, size, zero_points=zeros, groups=groups)
    codes = _unpacked(packed, bits, columns)
    return of_codes(codes, scales, bits, size, zero_points=zeros, groups=groups)


def _unpacked(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return codes of a bit stream, or of words with as many whole codes as fit, as before 0.16."""
    per = 32 // bits
    if words.shape[1] == -(-count * bits // 32) or words.shape[1] != -(-count // per):
        return unpacked_rows(words, bits, count)
    # Before version 0.16, 3-bit codes left two bits of each word unused.
    places = torch.arange(per) * bits
    codes = (words.long().unsqueeze(-1) >> places) & ((1 << bits) - 1)
    return codes.flatten(1)[:, :count].to(torch.uint8).contiguous()


def _of_bytes(
    tensors: Checkpoint, path: str, scales: torch.Tensor, weights: Mapping[str, Any]
) -> PackedMatrix:
    """Return a weight stored in bytes, possibly with codes of fewer bits."""
    weight = tensors[f"{path}.weight"]
    if weight.dtype == FLOAT8:
        # Scales for each row are not those of blocks, whatever the settings say.
        blocks = weights.get("block_structure") if scales.shape[0] != len(weight) else None
        return float8_matrix(weight, scales, blocks)
    if weight.dtype != torch.int8:
        raise ModelSourceError(f"the weight must be int8 or {FLOAT8}, got {weight.dtype}")
    bits = check_bits(weights.get("num_bits", 8))
    middle = 1 << (bits - 1)
    codes = weight.to(torch.int16) + middle
    # Fewer bits than a byte are only promised by the settings: a code beyond would change the next
    # one when they are packed.
    if int(codes.min()) < 0 or int(codes.max()) >= 2 * middle:
        raise ModelSourceError(f"the weight has values that do not fit in {bits} bits")
    zeros = tensors.get(f"{path}.weight_zero_point")
    if zeros is not None:
        # Codes were moved by the same number, so that differences stay.
        zeros = (zeros.to(torch.int16) + middle).to(torch.uint8).reshape(-1, scales.shape[1])
        zeros = zeros.expand(scales.shape).contiguous()
    groups = tensors.get(f"{path}.weight_g_idx")
    return of_codes(
        codes.to(torch.uint8),
        scales,
        bits,
        _group_size(weights),
        zero_points=zeros,
        groups=groups,
    )


def _by_rows(scales: torch.Tensor, outputs: int) -> torch.Tensor:
    """Return scales as a matrix; a single scale is repeated for each row."""
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand(outputs, 1).contiguous()
    return scales.unsqueeze(1) if scales.dim() == 1 else scales


def _group_size(weights: Mapping[str, Any]) -> int | None:
    """Return the group size in the settings, or None."""
    size = weights.get("group_size")
    # Files may name a group size beside a strategy that does not use it.
    return int(size) if size and weights.get("strategy", "group") in ("group", None) else None


def _rounding(tensors: Checkpoint, path: str, group: Mapping[str, Any]) -> Rounding | None:
    """Return what rounds the inputs of a layer; None if they are not rounded."""
    scheme = ActivationScheme.of(group.get("input_activations"))
    if scheme is None:
        return None
    names = ("input_scale", "input_zero_point", "input_global_scale")
    return Rounding(scheme, *(tensors.get(f"{path}.{name}") for name in names))


def _group(path: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a layer: those of its path precede those of all linear layers."""
    groups: Mapping[str, Any] = settings.get("config_groups") or {}
    of_class: Mapping[str, Any] = {}
    for group in groups.values():
        targets = group.get("targets") or [_LAYER]
        # A path precedes the class, as in compressed-tensors itself.
        if any(_names(target, path) for target in targets):
            return dict(group)
        if _LAYER in targets:
            of_class = group
    return of_class


def _names(target: str, path: str) -> bool:
    """Whether a target is the path of a layer, or an expression that matches it."""
    kind, colon, expression = target.partition(":")
    if colon and kind == "re":
        return matches(expression, path)
    return target == path


def _check_format(name: object) -> None:
    if name not in FORMATS:
        raise ModelSourceError(
            f"compressed-tensors: the format must be one of {', '.join(FORMATS)}, got {name!r}"
        )
