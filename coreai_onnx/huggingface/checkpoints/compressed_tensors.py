"""The format ``compressed-tensors`` of llm-compressor.

``pack-quantized``: ``weight_packed`` is int32 ``[outputs, inputs * bits / 32]``, with
``2 ** (bits - 1)`` added to each code; ``weight_zero_point`` is packed along the outputs.
``int-quantized`` and ``naive-quantized``: ``weight`` is int8 ``[outputs, inputs]``.
``float-quantized``: ``weight`` is float8. In all of them ``weight_scale`` is ``[outputs, groups]``,
or has one element; ``weight_g_idx`` has the group of each input; ``input_scale`` and
``input_zero_point`` are those of the inputs, if they are rounded with static scales.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.byte_linear import Float8Linear, IntegerLinear
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    CheckpointLayer,
    PackedLinear,
    PackedMatrix,
    check_bits,
    packed_rows,
    unpacked_rows,
)
from coreai_onnx.huggingface.checkpoints.rounded_activations import (
    FLOAT8,
    ActivationScheme,
    Rounding,
)
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint
from coreai_onnx.model.packed_codes import pack_codes

_PACKED, _MIXED = "pack-quantized", "mixed-precision"
_FORMATS = (_PACKED, "int-quantized", "naive-quantized", "float-quantized", _MIXED)
_LAYER = "Linear"


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> PackedMatrix | CheckpointLayer | None:
    """Return the weight of a linear layer, or the layer if its inputs are rounded.

    None if the checkpoint has it in floating point.

    Raises:
        ModelSourceError: If the format is unsupported.
    """
    _check(settings)
    scales = tensors.get(f"{path}.weight_scale")
    if scales is None:
        return None
    rounding = _rounding(tensors, path, settings)
    packed = tensors.get(f"{path}.weight_packed")
    if packed is None:
        return _layer_of_bytes(tensors, path, settings, scales, rounding)
    outputs, columns = shape
    bits = _bits(packed.shape[1], columns)
    weight = PackedMatrix(packed_rows(packed, scales, bits, columns), scales, bits)
    zeros = tensors.get(f"{path}.weight_zero_point")
    if zeros is not None:
        zeros = unpacked_rows(zeros.T, bits, outputs).T.contiguous()
        weight = PackedMatrix(weight.codes, scales, bits, zeros)
    return _rounded(weight.sorted_by(tensors.get(f"{path}.weight_g_idx")), rounding)


def _layer_of_bytes(
    tensors: Checkpoint,
    path: str,
    settings: Mapping[str, Any],
    scales: torch.Tensor,
    rounding: Rounding | None,
) -> PackedMatrix | CheckpointLayer:
    """Return a weight that is stored in bytes, or its layer."""
    weight = tensors[f"{path}.weight"]
    if weight.dtype == FLOAT8:
        return Float8Linear(weight, scales, rounding)
    if weight.dtype != torch.int8:
        raise ModelSourceError(f"the weight is {weight.dtype}, not int8 or {FLOAT8}")
    zeros = tensors.get(f"{path}.weight_zero_point")
    if rounding is not None and zeros is None and scales.numel() in (1, len(weight)):
        scheme = rounding.scheme
        if not scheme.is_float and scheme.strategy != "group":
            return IntegerLinear(weight, scales, rounding)
    bits = int((_group(path, settings).get("weights") or {}).get("num_bits", 8))
    matrix = _packed(weight, scales, zeros, bits)
    return _rounded(matrix.sorted_by(tensors.get(f"{path}.weight_g_idx")), rounding)


def _packed(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int
) -> PackedMatrix:
    """Return a weight in int8, of perhaps fewer bits, as a packed one."""
    check_bits(bits)
    middle, (outputs, columns) = 1 << (bits - 1), weight.shape
    scales = scales.reshape(-1, 1).expand(outputs, 1) if scales.numel() == 1 else scales
    groups = scales.shape[1]
    if scales.shape[0] != outputs or columns % groups or (columns // groups) * bits % 8:
        raise ModelSourceError(
            f"scales {list(scales.shape)} do not divide the weight {[outputs, columns]} into groups"
        )
    codes = (weight.to(torch.int16) + middle).reshape(outputs, groups, -1).numpy()
    if codes.min() < 0 or codes.max() >= 2 * middle:
        raise ModelSourceError(f"the weight has values that do not fit in {bits} bits")
    packed = torch.from_numpy(np.ascontiguousarray(pack_codes(codes, bits)))
    if zeros is not None:
        zeros = (zeros.to(torch.int16) + middle).to(torch.uint8).expand(scales.shape).contiguous()
    return PackedMatrix(packed, scales.contiguous(), bits, zeros)


def _rounded(weight: PackedMatrix, rounding: Rounding | None) -> PackedMatrix | CheckpointLayer:
    return weight if rounding is None else PackedLinear(weight, rounding=rounding)


def _rounding(tensors: Checkpoint, path: str, settings: Mapping[str, Any]) -> Rounding | None:
    """Return what rounds the inputs of a layer; None if they are not rounded."""
    scheme = ActivationScheme.of(_group(path, settings).get("input_activations"))
    if scheme is None:
        return None
    return Rounding(
        scheme, tensors.get(f"{path}.input_scale"), tensors.get(f"{path}.input_zero_point")
    )


def _group(path: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a layer: those of its path precede those of all linear layers."""
    groups: Mapping[str, Any] = settings.get("config_groups") or {}
    of_class: Mapping[str, Any] = {}
    for group in groups.values():
        targets = group.get("targets") or [_LAYER]
        if any(_names(target, path) for target in targets):
            return dict(group)
        if _LAYER in targets:
            of_class = group
    return of_class


def _names(target: str, path: str) -> bool:
    """Whether a target is the path of a layer, or an expression that matches it."""
    kind, colon, expression = target.partition(":")
    if colon and kind == "re":
        return re.match(expression, path) is not None
    return target == path


def _bits(words: int, columns: int) -> int:
    """Return the size of a code, which may differ from layer to layer."""
    fitting = [bits for bits in (8, 4, 2) if words == -(-columns // (32 // bits))]
    if not fitting:
        raise ModelSourceError(f"{words} words for {columns} inputs are not of 8, 4 or 2 bits")
    return fitting[0]


def _check(settings: Mapping[str, Any]) -> None:
    given = settings.get("format")
    if given not in _FORMATS:
        raise ModelSourceError(
            f"compressed-tensors in the format {given!r}, not {', '.join(map(repr, _FORMATS))}"
        )
    sparsity = (settings.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise ModelSourceError(f"compressed-tensors with sparsity {sparsity!r} are not supported")
    groups: Mapping[str, Any] = settings.get("config_groups") or {}
    if any(group.get("output_activations") for group in groups.values()):
        raise ModelSourceError("compressed-tensors with rounded outputs are not supported")
