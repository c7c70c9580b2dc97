"""The torch ops of this package: any composite, and weights that become composites on streams."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from coreai_onnx.composites.activation_modules import limits
from coreai_onnx.composites.compressed_ops import (
    COMPUTED,
    PAIRS,
    computed_dtype,
    float_table,
)
from coreai_onnx.composites.compressed_weights import streamed
from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import constant_or_none
from coreai_onnx.lower.nodes.values import Value, dims_of, dtype_of, is_float, is_powers
from coreai_onnx.lower.walk.registry import lowers
from coreai_onnx.model.packed_codes import STREAM_BITS

_PALETTE = "coreai.palette"
_BYTE = 8


class _Palette(NamedTuple):
    """A weight that was looked up: a scale that follows becomes a part of the look-up."""

    lut: Value
    codes: Value
    attributes: dict[str, Any]


@lowers("coreai.composite.default")
def composite(op: OpBuilder, inputs: Sequence[Value | None], name: str, attributes: str) -> Value:
    """Any composite with one output and attributes in JSON."""
    return op.composite(name, list(inputs), **json.loads(attributes))


@lowers("coreai.lut_to_dense.default")
def lut_to_dense(op: OpBuilder, indices: Value, lut: Value, axis: int | None = None) -> Value:
    """The composite ``lut_to_dense``; tables of other dtypes are cast to float32 and back."""
    shape, entries = _sizes(indices), _sizes(lut)[-2]
    constant = constant_or_none(indices)
    # Codes that are computed at run time have a byte each; only constants can be packed.
    bits = _fewest(entries - 1) if constant is not None else _BYTE
    codes = _stream(op, indices, constant, bits)
    attributes = {"bits": bits, "shape": shape, "axis": (axis or 0) % len(shape)}
    computed = lut if dtype_of(lut) in COMPUTED else op.cast(lut, torch.float32)
    dense = op.composite("lut_to_dense", [computed, codes], **attributes)
    result = op.cast(dense, dtype_of(lut))
    result.meta[_PALETTE] = _Palette(lut, codes, attributes)
    return result


@lowers("coreai.constexpr_blockwise_shift_scale.default")
def constexpr_blockwise_shift_scale(
    op: OpBuilder,
    input: Value,
    scale: Value,
    zero_point: Value | None = None,
    minval: Value | None = None,
    input_dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
) -> Value:
    """The composite ``blockwise_shift_scale``; ``lut_to_dense`` for palettes and narrow floats."""
    target = output_dtype or dtype_of(scale)
    computed = computed_dtype(dtype_of(scale), target)
    factors = op.cast(scale, computed)
    shifted = zero_point is not None or minval is not None
    palette: _Palette | None = input.meta.get(_PALETTE)
    # The rule of composites.compressed_ops.is_float4, by which the exported program has its shape.
    pairs = input_dtype == PAIRS or (is_powers(scale) and not shifted and input_dtype is None)
    if pairs and dtype_of(input) == torch.uint8:
        dense = _float4(op, input, factors)
    elif palette is not None and not shifted:
        table = op.cast(palette.lut, computed)
        dense = op.composite("lut_to_dense", [table, palette.codes, factors], **palette.attributes)
    elif is_float(input):
        dense = _floats(op, input, factors)
    else:
        least = None if minval is None else op.cast(minval, computed)
        low, _ = limits(input_dtype or dtype_of(input))
        codes, bits, minimum = _integers(op, input, low, keep=minval is not None)
        layout = {"bits": bits, "shape": _sizes(input), "minimum": minimum}
        dense = op.composite("blockwise_shift_scale", [factors, codes, zero_point, least], **layout)
    return op.cast(dense, target)


@lowers("coreai.sparse_to_dense.default")
def sparse_to_dense(op: OpBuilder, nonzero: Value, mask: Value) -> Value:
    """The composite ``sparse_to_dense``; a mask that is computed selects by positions."""
    shape, constant = _sizes(mask), constant_or_none(mask)
    if constant is None:
        present = op.cast(op.reshape(mask, [math.prod(shape)]), torch.int64)
        # Absent elements read the zero in front of the values.
        places = op.Mul(op.CumSum(present, 0), present)
        zero = op.cast(op.const([0.0]), dtype_of(nonzero))
        return op.reshape(op.Gather(op.Concat(zero, nonzero, axis=0), places, axis=0), shape)
    values = nonzero if dtype_of(nonzero) in COMPUTED else op.cast(nonzero, torch.float32)
    dense = op.composite("sparse_to_dense", [values, _stream(op, mask, constant, 1)], shape=shape)
    return op.cast(dense, dtype_of(nonzero))


# ---------------------------------------------------------------------- kinds of values
def _integers(op: OpBuilder, x: Value, low: int, *, keep: bool) -> tuple[Value, int, int]:
    """Return codes, their bits, and the integer of code 0, which is ``low`` if ``keep``."""
    constant = constant_or_none(x)
    if constant is None:
        codes = op.Sub(op.cast(op.reshape(x, [math.prod(_sizes(x))]), torch.int32), low)
        return op.cast(codes, torch.uint8), _BYTE, low
    steps = constant.to(torch.int64)
    least, largest = (int(steps.min()), int(steps.max())) if steps.numel() else (0, 0)
    # minval is the value of the lowest integer of the dtype, so that this must remain code 0.
    if keep or low == 0:
        bits, minimum = _fewest(largest - low), low
    else:
        bits = min(b for b in STREAM_BITS if -(1 << (b - 1)) <= least and largest < 1 << (b - 1))
        minimum = -(1 << (bits - 1))
    return _stream(op, x, steps - minimum, bits), bits, minimum


def _float4(op: OpBuilder, x: Value, factors: Value) -> Value:
    """Pairs in bytes are a stream of indices into the values of float4 as they are."""
    *rows, last = _sizes(x)
    _, table = float_table(torch.zeros(1, dtype=torch.uint8), PAIRS)
    codes = op.reshape(x, [math.prod([*rows, last])])
    return _looked_up(op, codes, 4, [*rows, 2 * last], table, factors)


def _floats(op: OpBuilder, x: Value, factors: Value) -> Value:
    """Constants of float8 are indices into all values of their dtype, other floats factors."""
    shape, dtype = _sizes(x), dtype_of(x)
    if x.const_value is None or dtype.itemsize > 1:
        return op.Mul(op.cast(x, dtype_of(factors)), _tiled(op, factors, shape))
    # A copy, because torch warns about memory that is not writable.
    data = torch.from_numpy(x.const_value.numpy().view("uint8").copy())
    indices, table = float_table(data.view(dtype), dtype)
    return _looked_up(op, _stream(op, x, indices, _BYTE), _BYTE, shape, table, factors)


def _looked_up(
    op: OpBuilder, codes: Value, bits: int, shape: list[int], table: torch.Tensor, factors: Value
) -> Value:
    """Return values of one table for all blocks, times a factor for each block."""
    lut = op.const(table.to(dtype_of(factors)).reshape([1] * len(shape) + [-1, 1]))
    return op.composite("lut_to_dense", [lut, codes, factors], bits=bits, shape=shape, axis=0)


# ---------------------------------------------------------------------- layouts
def _sizes(x: Value) -> list[int]:
    dims = dims_of(x)
    sizes = [d for d in dims if isinstance(d, int)]
    if len(sizes) < len(dims):
        raise LoweringError(f"a compressed weight has sizes that are not known: {dims}")
    return sizes


def _fewest(largest: int) -> int:
    """Return the least bits of a code that holds an integer."""
    return min(b for b in STREAM_BITS if largest < 1 << b)


def _stream(op: OpBuilder, x: Value, codes: torch.Tensor | None, bits: int) -> Value:
    """Return codes in a stream: constants packed once for all calls, others a byte each."""
    if codes is None:
        return op.reshape(x, [math.prod(_sizes(x))])
    key = f"coreai.stream.{bits}"
    if key not in x.meta:
        x.meta[key] = op.const(streamed(codes, bits), name=f"{x.name}.{bits}bits")
    packed: Value = x.meta[key]
    return packed


def _tiled(op: OpBuilder, blocks: Value, shape: Sequence[int]) -> Value:
    """Return each value repeated over its block."""
    counts = _sizes(blocks)
    pairs = [(n, size // n) for n, size in zip(counts, shape, strict=True)]
    apart = op.reshape(blocks, [d for n, _ in pairs for d in (n, 1)])
    return op.reshape(op.expand(apart, [d for pair in pairs for d in pair]), shape)
