"""The bodies of products with few-bit weights, and of lookups in tables of few bits."""

from __future__ import annotations

import math

import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, always_cast
from coreai_onnx.bodies.products import Matrices, grouped
from coreai_onnx.bodies.writers import writes
from coreai_onnx.composites.few_bit_weights import LARGEST_STEP, SMALLEST
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.model.weight_formats import BLOCK_SIZE, BY_ROW, NAMES, OPTIONAL

Parts = dict[str, Value]
"""The parts of a weight, by their names."""
_DEFAULT_BITS = 4  # the variant without a word
_BYTE = 8
_LARGEST_FIELD = 9  # bits of a field: it lies in at most two bytes


def few_bits_words(variant: Variant) -> list[str]:
    """Return the variant words of a call of a composite with few-bit weights."""
    inputs, bits = variant.inputs, int(variant.attributes["bits"])
    words = [] if bits == _DEFAULT_BITS else [f"bits{bits}"]
    words += ["rounded"] if variant.attributes.get("activation_bits") else []
    of_scales = f"scales{variant.attributes['scale_bits']}"
    names = [name for name in OPTIONAL if name in inputs and name != "layout"]
    parts = [of_scales if name == "scale_codes" else name for name in names]
    words += ["_".join(parts)] if parts else []
    return [*words, *(name for name in ("bias", "like") if name in inputs)]


def _weight(b: BodyBuilder) -> Parts:
    """Return the parts of the weight that a call has."""
    parts = {name: b.input(name) for name in NAMES}
    return {name: part for name, part in parts.items() if part is not None}


def _sizes(b: BodyBuilder) -> tuple[int, int]:
    """Return the sizes of a code and of a code of a scale, in bits."""
    return int(b.attributes["bits"]), int(b.attributes["scale_bits"])


def _rows(op: OpBuilder, parts: Parts, indices: Value) -> Parts:
    """Return the parts of some rows, or of the matrices of some experts."""
    return {
        name: op.Gather(part, indices, axis=0) if name in BY_ROW else part
        for name, part in parts.items()
    }


@writes("linear_nbits", words=few_bits_words)
def linear_nbits(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.few_bits.linear_nbits`."""
    op, wide = b.op, b.wide
    weight = dequantized(op, _weight(b), _sizes(b), wide)
    sizes = op.Shape(weight)  # [N, groups, group_size]
    x = always_cast(op, b.inputs[0], wide)
    if b.attributes["activation_bits"]:
        x = rounded(op, x, op.Slice(sizes, [1], [3], [0]))
    rows = op.Reshape(weight, op.Concat(op.Slice(sizes, [0], [1], [0]), [-1], axis=0))
    product = op.MatMul(x, op.Transpose(rows, perm=[1, 0]))
    bias = b.input("bias")
    total = product if bias is None else op.Add(product, always_cast(op, bias, wide))
    return op.CastLike(total, b.inputs[0])


def dequantized(op: OpBuilder, parts: Parts, bits: tuple[int, int], wide: torch.dtype) -> Value:
    """Return the values of a weight in groups, ``[..., groups, group_size]``, in ``wide``."""
    if "table" in parts:
        steps, factors = _looked_up(op, parts)
        levels = op.Mul(_levels(op, parts["scales"], wide), always_cast(op, factors, wide))
        by_group = op.Concat(op.Shape(steps, end=-1), [1], axis=0)
        values = op.Gather(always_cast(op, parts["palette"], wide), steps, axis=0)
        return op.Mul(values, op.Reshape(levels, by_group, allowzero=1))
    steps = unpacked(op, parts["codes"], bits[0])
    scales, minimums = _scales(op, parts, bits[1], wide)
    if minimums is not None:
        # One rounding, in the difference: the products are exact for the numbers of GGUF.
        return op.Sub(op.Mul(always_cast(op, steps, wide), scales), minimums)
    if "palette" in parts:
        values = op.Gather(always_cast(op, parts["palette"], wide), steps, axis=0)
    elif "zero_points" in parts:
        codes, zeros = (always_cast(op, x, wide) for x in (steps, parts["zero_points"]))
        values = op.Sub(codes, op.Unsqueeze(zeros, [-1]))
    else:
        # Without zero points, zero is in the middle of the range of the codes.
        values = op.Sub(always_cast(op, steps, wide), float(1 << (bits[0] - 1)))
    return op.Mul(values, scales)


def _scales(
    op: OpBuilder, parts: Parts, bits: int, wide: torch.dtype
) -> tuple[Value, Value | None]:
    """Return scales and minimums of groups, ``[..., groups, 1]``, in ``wide``."""
    levels = {n: _levels(op, parts[n], wide) for n in ("scales", "minimums") if n in parts}
    scales, minimums = levels["scales"], levels.get("minimums")
    if "scale_codes" not in parts:
        return scales, minimums
    factors = always_cast(op, unpacked(op, parts["scale_codes"], bits), wide)
    by_group = op.Concat(op.Shape(parts["codes"], start=0, end=-1), [1], axis=0)
    if minimums is None:
        centered = op.Sub(factors, float(1 << (bits - 1)))
        return op.Reshape(op.Mul(scales, centered), by_group, allowzero=1), None
    of_scales, of_minimums = op.Split(factors, axis=-1, num_outputs=2, _outputs=2)
    return (
        op.Reshape(op.Mul(scales, of_scales), by_group, allowzero=1),
        op.Reshape(op.Mul(minimums, of_minimums), by_group, allowzero=1),
    )


def _levels(op: OpBuilder, levels: Value, wide: torch.dtype) -> Value:
    return op.Unsqueeze(always_cast(op, levels, wide), [-1])


def _looked_up(op: OpBuilder, parts: Parts) -> tuple[Value, Value]:
    """Return the codes of blocks, ``[..., groups, group_size]``, and the factors of their scales.

    Codes are int32, factors int32 ``[..., blocks, groups]``.
    """
    blocks, table, layout = parts["codes"], parts["table"], parts["layout"]
    fields = op.Slice(layout, [1], op.Shape(layout, start=1), [1])
    fields = op.Reshape(fields, op.Concat(op.Shape(layout, end=1), [-1, 3], axis=0))
    place, size, factor = (op.Gather(fields, column, axis=-1) for column in range(3))
    powers = op.const([1 << i for i in range(_LARGEST_FIELD + 1)], torch.int32)
    words = op.cast(op.Gather(blocks, op.Div(place, _BYTE), axis=-1), torch.int32)
    last = op.Div(op.Sub(op.Add(place, size), 1), _BYTE)
    # Where a field ends in its first byte, the remainder removes the other one.
    above = op.cast(op.Gather(blocks, last, axis=-1), torch.int32)
    words = op.Add(words, op.Mul(above, 1 << _BYTE))
    values = op.Div(words, op.Gather(powers, op.Mod(place, _BYTE), axis=0))
    values = op.Mul(op.Mod(values, op.Gather(powers, size, axis=0)), factor)
    numbers = op.Add(op.ReduceSum(values, [-1], keepdims=0), op.Gather(layout, 0, axis=1))
    count = op.Div([BLOCK_SIZE], op.Shape(table, start=1))
    groups = op.Sub(op.Shape(layout, end=1), op.Mul(count, 2))
    sizes = op.Concat(groups, count, count, axis=0)
    factors, *rows = op.Split(numbers, sizes, axis=-1, _outputs=3)
    codes = op.BitwiseOr(*(op.Gather(table, some, axis=0) for some in rows))
    shape = op.Concat(
        op.Shape(blocks, end=-2),
        op.Mul(op.Shape(blocks, start=-2, end=-1), groups),
        op.Div([BLOCK_SIZE], groups),
        axis=0,
    )
    return op.cast(op.Reshape(codes, shape, allowzero=1), torch.int32), factors


def unpacked(op: OpBuilder, codes: Value, bits: int) -> Value:
    """Return the codes in the last axis of bytes, as int32."""
    if bits == _BYTE:
        return op.cast(codes, torch.int32)
    # Codes of 3, 5 and 6 bits cross the limits of bytes; three or five bytes are the smallest unit
    # of whole codes. Three fit in int32.
    wide = torch.int64 if bits == 5 else torch.int32
    size = math.lcm(bits, _BYTE) // _BYTE
    lead, count = op.Shape(codes, start=0, end=-1), op.Shape(codes, start=-1)
    if size == 1:
        units = op.Unsqueeze(codes, [-1])
    else:
        split = op.Concat(lead, op.Div(count, [size]), [size], axis=0)
        units = op.Reshape(codes, split, allowzero=1)  # no rows may be looked up
    words = op.cast(units, wide)
    if size > 1:
        # Bytes are in little-endian order.
        places = op.const([1 << (_BYTE * i) for i in range(size)], wide)
        words = op.Unsqueeze(op.MatMul(words, places), [-1])
    shifts = op.const([1 << i for i in range(0, size * _BYTE, bits)], wide)
    # Div and Mod: BitShift does not accept int32.
    steps = op.Mod(op.Div(words, shifts), op.const(1 << bits, wide))
    whole = op.Div(op.Mul(count, [_BYTE]), [bits])
    return op.Reshape(steps, op.Concat(lead, whole, axis=0), allowzero=1)


def rounded(op: OpBuilder, x: Value, groups: Value) -> Value:
    """Return activations rounded to 255 steps per group; ``groups`` is their number and size."""
    shape = op.Shape(x)
    split = op.Concat(op.Slice(shape, [0], [-1], [0]), groups, axis=0)
    grouped = op.Reshape(x, split, allowzero=1)
    # The bound keeps a group of zeros from a division by zero.
    largest = op.Max(op.ReduceMax(op.Abs(grouped), [-1], keepdims=1), SMALLEST)
    steps = op.Round(op.Mul(grouped, op.Div(float(LARGEST_STEP), largest)))
    return op.Reshape(op.Mul(steps, op.Div(largest, float(LARGEST_STEP))), shape, allowzero=1)


@writes("gather_mm_nbits", words=few_bits_words)
def gather_mm_nbits(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.few_bits.gather_mm_nbits`."""
    op, wide = b.op, b.wide
    lhs, codes, _, indices = b.inputs[:4]
    parts = _weight(b)
    count, width = op.Shape(codes, start=0, end=1), op.Shape(codes, start=1, end=2)
    depth, bits = op.Shape(lhs, start=-1), _sizes(b)
    chosen = op.Gather(op.Range(0, op.Squeeze(count, [0]), 1), indices, axis=0)
    x = always_cast(op, lhs, wide)
    if b.attributes["activation_bits"]:
        group = op.Unsqueeze(b.attribute("group_size"), [0])
        x = rounded(op, x, op.Concat(op.Shape(codes, start=2, end=3), group, axis=0))

    def product(inner: OpBuilder, rows: Value, which: Value) -> Value:
        matrix = dequantized(inner, _rows(inner, parts, which), bits, wide)
        flat = inner.Reshape(matrix, inner.Concat(width, depth, axis=0), allowzero=1)
        return inner.MatMul(rows, inner.Transpose(flat, perm=[1, 0]))

    return op.CastLike(grouped(op, x, Matrices(chosen, count, width, product, wide)), lhs)


@writes("embedding_nbits", words=few_bits_words)
def embedding_nbits(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.few_bits.embedding_nbits`."""
    op, wide = b.op, b.wide
    scales, _, indices = b.inputs[:3]
    rows_of_call = _rows(op, _weight(b), indices)
    values = dequantized(op, rows_of_call, _sizes(b), wide)
    columns = op.ReduceProd(op.Shape(values, start=-2))
    rows = op.Reshape(values, op.Concat(op.Shape(indices), columns, axis=0), allowzero=1)
    like = b.input("like")
    return op.CastLike(rows, scales if like is None else like)
