"""The bodies of products.

That of ``gather_mm`` has one product per selected matrix, with all rows that select it.

No matrix is copied per row: rows are sorted by their matrix, and a loop runs over the matrices that
have rows, so that the cost is that of the products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, always_cast
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import AttributeRef
from coreai_onnx.lower.nodes.values import Value, ir_dtype, set_dims

_AXIS = AttributeRef("num_batch_axes", "int")


def _words(variant: Variant) -> list[str]:
    inputs = variant.inputs
    left, right = "lhs_indices" in inputs, "rhs_indices" in inputs
    words = ["both_indices"] if left and right else []
    words = words or (["lhs_indices"] if left else ["rhs_indices"] if right else [])
    words += ["rows"] if right and _chooses_rows(variant) else []
    return [*words, "transposed"] if variant.attributes["transpose_rhs"] else words


@writes("gather_mm", words=_words)
def gather_mm(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.products.gather_mm`."""
    op, (lhs, rhs) = b.op, b.inputs[:2]
    left, right = b.input("lhs_indices"), b.input("rhs_indices")
    rows = lhs if left is None else op.Gather(lhs, left, axis=_AXIS)
    transposed = bool(b.attributes["transpose_rhs"])
    wide = b.wide
    if right is not None and not _chooses_rows(b.variant):
        return op.CastLike(grouped(op, rows, _stored(op, rhs, right, transposed, wide)), lhs)
    matrices = rhs if right is None else op.Gather(rhs, right, axis=_AXIS)
    if transposed:
        # Transpose needs a permutation, that is the rank, which the body does not know: batch axes
        # are merged into one for it.
        lead = op.Shape(matrices, start=0, end=-2)
        stacked = op.Reshape(matrices, op.Concat([-1], _last_dims(op, matrices), axis=0))
        turned = op.Transpose(stacked, perm=[0, 2, 1])
        matrices = op.Reshape(turned, op.Concat(lead, _last_dims(op, turned), axis=0))
    product = op.MatMul(always_cast(op, rows, wide), always_cast(op, matrices, wide))
    return op.CastLike(product, lhs)


def _convolution_words(variant: Variant) -> list[str]:
    words = [] if "bias" in variant.inputs else ["no_bias"]
    words += ["residual"] if "residual" in variant.inputs else []
    return [*words, "relu"] if variant.attributes["activation"] == "relu" else words


@writes("convolution", words=_convolution_words)
def convolution(b: BodyBuilder) -> Value:
    """Conv, and what is added to it and activates it."""
    op, residual = b.op, b.input("residual")
    result = _convolved(b)
    if residual is not None:
        result = op.Add(result, b.widened(residual))
    return op.cast(op.Relu(result) if b.attributes["activation"] == "relu" else result, b.dtype)


def _convolved(b: BodyBuilder) -> Value:
    """Conv; for float64, of which onnxruntime has none, the product of weight and windows."""
    op, given = b.op, b.input("bias")
    x, weight = (b.widened(one) for one in b.inputs[:2])
    bias = [] if given is None else [b.widened(given)]
    if b.dtype != torch.float64:
        attributes: dict[str, Any] = {
            "strides": b.ref("stride"),
            "pads": b.ref("padding"),
            "dilations": b.ref("dilation"),
            "group": b.ref("groups"),
        }
        return op.cast(op.node("Conv", x, weight, *bias, **attributes), b.wide)
    padding, none = b.attribute("padding"), op.const([0, 0])
    starts, ends = op.Gather(padding, op.const([0, 1])), op.Gather(padding, op.const([2, 3]))
    x = op.Pad(x, op.Concat(none, starts, none, ends, axis=0))
    counts = []
    for axis in (0, 1):  # [N, C, windows, Y, windows, X]
        places, count = _places(b, x, weight, axis)
        counts.append(count)
        x = op.Gather(x, places, axis=2 + 2 * axis)
    groups = op.unsqueeze(b.attribute("groups"), [0])
    batch, windows = op.Shape(x, end=1), op.Concat(*counts, axis=0)
    window = op.Shape(weight, start=1)
    split = op.Concat(batch, groups, op.Shape(weight, start=1, end=2), counts[0],
                      op.Shape(weight, start=2, end=3), counts[1],
                      op.Shape(weight, start=3), axis=0)  # fmt: skip
    ordered = op.Transpose(op.Reshape(x, split), perm=[0, 1, 2, 4, 6, 3, 5])
    sizes = [op.ReduceProd(one, keepdims=1) for one in (window, windows)]
    columns = op.Reshape(ordered, op.Concat(batch, groups, *sizes, axis=0))
    rows = op.Reshape(weight, op.Concat(groups, op.const([-1]), sizes[0], axis=0))
    result = op.MatMul(rows, columns)
    result = op.Reshape(result, op.Concat(batch, op.Shape(weight, end=1), windows, axis=0))
    return op.Add(result, op.unsqueeze(bias[0], [1, 2])) if bias else result


def _places(b: BodyBuilder, x: Value, weight: Value, axis: int) -> tuple[Value, Value]:
    """Return ``[windows, window]`` indices along an axis of padded planes, and the first size."""
    op, which = b.op, [axis]
    stride = op.Gather(b.attribute("stride"), which)
    dilation = op.Gather(b.attribute("dilation"), which)
    # One axis of x was replaced by two.
    size = op.Shape(x, start=2 + 2 * axis, end=3 + 2 * axis)
    window = op.Shape(weight, start=2 + axis, end=3 + axis)
    reach = op.Add(op.Mul(op.Sub(window, 1), dilation), 1)
    count = op.Add(op.Div(op.Sub(size, reach), stride), 1)
    starts, offsets = (
        op.Mul(op.Range(0, op.squeeze(n, [0]), 1), step)
        for n, step in ((count, stride), (window, dilation))
    )
    return op.Add(op.unsqueeze(starts, [1]), offsets), count


@writes("add_low_rank")
def add_low_rank(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.products.add_low_rank`."""
    op = b.op
    total, x, down, up = (always_cast(op, value, b.wide) for value in b.inputs)
    return op.CastLike(op.Add(total, op.MatMul(op.MatMul(x, down), up)), b.inputs[0])


def _chooses_rows(variant: Variant) -> bool:
    """Whether ``rhs_indices`` select along an axis of the matrices, instead of whole matrices."""
    return len(variant.inputs["rhs"].dims) - int(variant.attributes["num_batch_axes"]) <= 2


@dataclass(frozen=True)
class Matrices:
    """The matrices of grouped products.

    Attributes:
        chosen: The matrix for each index of the batch axes, int64.
        count: The number of matrices, ``[1]``.
        width: The number of columns of a product, ``[1]``.
        product: Writes the product of rows ``[n, M, K]`` and a matrix, given by its number,
            ``[n, M, N]``.
        wide: Dtype of a product.
    """

    chosen: Value
    count: Value
    width: Value
    product: Callable[[OpBuilder, Value, Value], Value]
    wide: torch.dtype


def _stored(
    op: OpBuilder,
    rhs: Value,
    indices: Value,
    transposed: bool,  # noqa: FBT001 - internal
    wide: torch.dtype,
) -> Matrices:
    """Return the matrices of ``rhs`` that the indices select, ``[N, K]`` if ``transposed``."""
    # With batch axes, an index selects another matrix in each of their entries. One Gather from the
    # numbers of all matrices finds them.
    chosen = op.Gather(_numbers(op, rhs), indices, axis=_AXIS)
    count = op.ReduceProd(op.Shape(rhs, start=0, end=-2), keepdims=1)
    width = op.Shape(rhs, start=-2, end=-1) if transposed else op.Shape(rhs, start=-1)
    # allowzero, because a size of 0 would otherwise mean that of the input.
    stacked = op.Reshape(rhs, _stack(op, rhs), allowzero=1)

    def product(inner: OpBuilder, rows: Value, which: Value) -> Value:
        matrix = inner.Gather(stacked, which, axis=0)
        if transposed:
            matrix = inner.Transpose(matrix, perm=[1, 0])
        return inner.MatMul(always_cast(inner, rows, wide), always_cast(inner, matrix, wide))

    return Matrices(chosen, count, width, product, wide)


def grouped(op: OpBuilder, lhs: Value, matrices: Matrices) -> Value:
    """Multiply ``lhs [..., M, K]`` by the chosen matrices, one product per matrix that has rows."""
    left = _numbers(op, lhs)
    # ONNX has no op for a common shape; a sum has it.
    batch = op.Shape(op.Add(left, matrices.chosen))
    row_of, matrix_of = (op.Reshape(op.Expand(x, batch), [-1]) for x in (left, matrices.chosen))
    count = op.Shape(row_of)
    sorted_, order = op.TopK(matrix_of, count, axis=-1, largest=0, sorted=1, _outputs=2)
    rows_in_order = op.Gather(row_of, order, axis=0)
    ones = op.Expand(op.const(1), count)
    sizes = op.ScatterElements(
        op.Expand(op.const(0), matrices.count), sorted_, ones, axis=0, reduction="add"
    )
    ends = op.CumSum(sizes, op.const(0))
    groups = _Groups(ends, op.Sub(ends, sizes), op.Squeeze(op.NonZero(sizes), [0]))
    height = op.Shape(lhs, start=-2, end=-1)
    # ConcatFromSequence needs a tensor even if no matrix has rows.
    nothing = op.const(torch.zeros(0, 1, 1), matrices.wide)
    empty = op.Expand(nothing, op.Concat([0], height, matrices.width, axis=0))
    stacked = op.Reshape(lhs, _stack(op, lhs), allowzero=1)
    joined = _one_by_one(op, groups, stacked, rows_in_order, empty, matrices)
    places = op.Range(0, op.Squeeze(count, [0]), 1)
    # Inverts the order: back[order[i]] = i.
    back = op.ScatterElements(order, order, places, axis=0)
    result = op.Gather(joined, back, axis=0)
    return op.Reshape(result, op.Concat(batch, height, matrices.width, axis=0), allowzero=1)


class _Groups:
    """Ends and starts of the rows of each matrix, and the matrices that have rows."""

    def __init__(self, ends: Value, starts: Value, active: Value) -> None:
        self.ends, self.starts, self.active = ends, starts, active


def _one_by_one(
    op: OpBuilder, groups: _Groups, lhs: Value, rows: Value, empty: Value, matrices: Matrices
) -> Value:
    """Multiply the rows of one matrix per loop iteration; return all products, concatenated.

    The products are collected in a sequence, since their lengths differ.
    """
    names, wide = op.scope.names, ir_dtype(matrices.wide)
    (first,) = op.call("", "SequenceConstruct", [empty], {})
    graph = ir.Graph([], [], nodes=[], name=names.unique("matrices"))
    inner = op.inside(op.scope.nested(graph))
    scalar, parts_type = ir.Shape([]), ir.SequenceType(ir.TensorType(wide))
    turn = ir.Value(name=names.unique("turn"), type=ir.TensorType(ir.DataType.INT64), shape=scalar)
    going = ir.Value(name=names.unique("going"), type=ir.TensorType(ir.DataType.BOOL), shape=scalar)
    parts = ir.Value(name=names.unique("parts"), type=parts_type)
    graph.inputs.extend([set_dims(turn, []), set_dims(going, []), parts])
    which = inner.Gather(groups.active, turn, axis=0)
    bounds = (inner.Gather(x, which, axis=0) for x in (groups.starts, groups.ends))
    begin, end = (inner.Unsqueeze(x, [0]) for x in bounds)
    chosen = inner.Gather(lhs, inner.Slice(rows, begin, end, [0]), axis=0)
    part = matrices.product(inner, chosen, which)
    (longer,) = inner.call("", "SequenceInsert", [parts, part], {})
    graph.outputs.extend([inner.Identity(going), longer])
    parts.type = None  # left to shape inference, so that the text is equal for all dtypes
    turns = op.Squeeze(op.Shape(groups.active), [0])
    (collected,) = op.call("", "Loop", [turns, None, first], {"body": graph})
    (joined,) = op.call("", "ConcatFromSequence", [collected], {"axis": 0})
    joined.dtype = wide
    return joined


def _numbers(op: OpBuilder, x: Value) -> Value:
    """Return the index of each matrix of ``x``, in the shape of its batch axes."""
    batch = op.Shape(x, start=0, end=-2)
    count = op.Squeeze(op.ReduceProd(batch, keepdims=1), [0])
    return op.Reshape(op.Range(0, count, 1), batch, allowzero=1)


def _stack(op: OpBuilder, x: Value) -> Value:
    """Return the shape of ``x`` with its batch axes merged into one."""
    count = op.ReduceProd(op.Shape(x, start=0, end=-2), keepdims=1)
    return op.Concat(count, _last_dims(op, x), axis=0)


def _last_dims(op: OpBuilder, x: Value) -> Value:
    return op.Shape(x, start=-2)


def _parts(b: BodyBuilder, x: Value) -> list[Value]:
    # The index is checked in each run only; a Split would make the file of one rank invalid.
    return [b.op.Gather(x, b.op.const(r), axis=0) for r in range(int(b.attributes["ranks"]))]


@writes("all_reduce")
def all_reduce(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.products.all_reduce`."""
    op, (parts,) = b.op, b.inputs
    total, *others = _parts(b, always_cast(op, parts, b.wide))
    for part in others:
        total = op.Add(total, part)
    return op.Expand(op.CastLike(total, parts), op.Shape(parts))


@writes("all_gather")
def all_gather(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.products.all_gather`."""
    op, (parts,) = b.op, b.inputs
    joined = op.Concat(*_parts(b, parts), axis=-1)
    shape = op.Concat(op.Shape(parts, end=1), op.Shape(joined), axis=0)
    return op.Expand(joined, shape)
