"""The bodies of compressed weights: tables, masks and block scales, as arithmetic on constants.

onnxruntime computes everything that depends only on constants when it loads a model, so that a
constant weight is decompressed once. The bodies do not depend on ranks.
"""

from __future__ import annotations

import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, always_cast
from coreai_onnx.bodies.few_bits import unpacked
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value

_DEFAULT_BITS = 8  # the variant without a word
_LAST = 2**31 - 1  # Slice stops at the end of the axis


def _words(variant: Variant) -> list[str]:
    inputs, bits = variant.inputs, int(variant.attributes["bits"])
    words = [] if bits == _DEFAULT_BITS else [f"bits{bits}"]
    optional = (declared.name for declared in variant.composite.inputs if declared.optional)
    return [*words, *(name for name in optional if name in inputs)]


@writes("lut_to_dense", words=_words)
def lut_to_dense(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.compressed_weights.lut_to_dense`."""
    op, lut, shape = b.op, b.inputs[0], b.attribute("shape")
    grid, vector = op.Shape(lut, end=-2), op.Shape(lut, start=-1)
    # One Gather serves any number of tables: they are flattened to rows of entries, and a row is
    # the first one of its table plus the code.
    tables = op.Range(op.const(0), op.ReduceProd(grid, keepdims=0), op.const(1))
    first = op.Mul(_tiled(op, op.Reshape(tables, grid), shape), op.Shape(lut, start=-2, end=-1))
    rows = op.Add(first, _codes(op, b.inputs[1], int(b.attributes["bits"]), shape))
    entries = op.Reshape(lut, op.Concat([-1], vector, axis=0))
    dense = _joined(op, op.Gather(entries, rows, axis=0), shape, b.attribute("axis"))
    scale = b.input("scale")
    if scale is None:
        return dense
    wide = _wide(b)
    factors = _tiled(op, op.cast(scale, wide), op.Shape(dense))
    return op.cast(op.Mul(op.cast(dense, wide), factors), b.dtype)


@writes("sparse_to_dense")
def sparse_to_dense(b: BodyBuilder) -> Value:
    """Gather from the values behind a zero: elements that are absent have the position 0."""
    op, (nonzero, mask) = b.op, b.inputs
    shape = b.attribute("shape")
    bits = _codes(op, mask, 1, op.ReduceProd(shape))
    positions = op.Mul(op.CumSum(bits, op.const(0)), bits)
    values = op.Concat(op.const([0.0], b.dtype), nonzero, axis=0)
    return op.Reshape(op.Gather(values, positions, axis=0), shape, allowzero=1)


@writes("blockwise_shift_scale", words=_words)
def blockwise_shift_scale(b: BodyBuilder) -> Value:
    """Write the body; see the reference in :mod:`coreai_onnx.composites`."""
    op, wide, shape = b.op, _wide(b), b.attribute("shape")
    scale, minval, zeros = b.inputs[0], b.input("minval"), b.input("zero_point")
    codes = _codes(op, b.inputs[1], int(b.attributes["bits"]), shape)
    factors = _tiled(op, op.cast(scale, wide), shape)
    if minval is not None:
        least = _tiled(op, op.cast(minval, wide), shape)
        return op.cast(op.Add(op.Mul(op.cast(codes, wide), factors), least), b.dtype)
    steps = op.cast(op.Add(codes, b.attribute("minimum")), wide)
    if zeros is not None:
        steps = op.Sub(steps, _tiled(op, always_cast(op, zeros, wide), shape))
    return op.cast(op.Mul(steps, factors), b.dtype)


def _wide(b: BodyBuilder) -> torch.dtype:
    return b.wide


def _codes(op: OpBuilder, stream: Value, bits: int, shape: Value) -> Value:
    """Return the codes of a stream in a shape, int64."""
    codes = unpacked(op, op.Reshape(stream, [-1]), bits)
    count = op.ReduceProd(shape, keepdims=1)
    # The last byte may end with padding.
    used = op.Slice(op.cast(codes, torch.int64), [0], count, [0])
    # allowzero, because a size of 0 would otherwise mean that of the input.
    return op.Reshape(used, shape, allowzero=1)


def _tiled(op: OpBuilder, blocks: Value, shape: Value) -> Value:
    """Return each value repeated over its block, by an axis of neighbors behind each axis."""
    grid = op.Shape(blocks)
    # A shape of ones whose rank is that of the grid, which the body does not know.
    ones = op.Div(grid, grid)
    single, whole = (
        op.Reshape(op.Concat(*(op.Unsqueeze(x, [1]) for x in (grid, n)), axis=1), [-1])
        for n in (ones, op.Div(shape, grid))
    )
    repeated = op.Expand(op.Reshape(blocks, single), whole)
    return op.Reshape(repeated, shape, allowzero=1)


def _joined(op: OpBuilder, vectors: Value, shape: Value, axis: Value) -> Value:
    """Return ``[*shape, vector]`` with the elements of the vectors along an axis."""
    place = op.Unsqueeze(axis, [0])
    behind = op.Add(place, [1])
    before, after = op.Slice(shape, [0], place, [0]), op.Slice(shape, behind, [_LAST], [0])
    vector = op.Shape(vectors, start=-1)
    longer = op.Mul(op.Slice(shape, place, behind, [0]), vector)
    # the product of no sizes is one; ReduceProd returns nothing for it
    rest = op.ReduceProd(op.Concat(after, [1], axis=0), keepdims=1)
    lead = op.ReduceProd(op.Slice(shape, [0], behind, [0]), keepdims=1)
    split = op.Reshape(vectors, op.Concat(lead, rest, vector, axis=0), allowzero=1)
    moved = op.Transpose(split, perm=[0, 2, 1])
    return op.Reshape(moved, op.Concat(before, longer, after, axis=0), allowzero=1)
