"""The body of ``gather_mm``: one product per selected matrix, with all rows that select it.

No matrix is copied per row: rows are sorted by their matrix, and a loop runs over the matrices that
have rows, so that the cost is that of the products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.composite_ops.declaration import Composite
from coreai_onnx.functions.body import BodyBuilder, always_cast
from coreai_onnx.functions.trace import Example
from coreai_onnx.functions.writers import Examples, present, writes
from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.scope import AttributeRef
from coreai_onnx.lower.values import Value, ir_dtype, set_dims

_AXIS = AttributeRef("num_batch_axes", "int")


def _words(composite: Composite, examples: Examples, attributes: Mapping[str, Any]) -> list[str]:
    given = present(composite, examples)
    left, right = "lhs_indices" in given, "rhs_indices" in given
    words = ["both_indices"] if left and right else []
    words = words or (["lhs_indices"] if left else ["rhs_indices"] if right else [])
    words += ["rows"] if right and chooses_rows(given["rhs"], attributes) else []
    return [*words, "transposed"] if attributes["transpose_rhs"] else words


@writes("gather_mm", words=_words)
def write(
    b: BodyBuilder, examples: Sequence[Example | None], attributes: Mapping[str, Any]
) -> Value:
    """Write the body; see :func:`coreai_onnx.composite_ops.gather_mm.gather_mm`."""
    op, (lhs, rhs) = b.op, b.inputs[:2]
    left, right = b.given("lhs_indices"), b.given("rhs_indices")
    rows = lhs if left is None else op.Gather(lhs, left, axis=_AXIS)
    transposed = bool(attributes["transpose_rhs"])
    wide = torch.float64 if b.dtype == torch.float64 else torch.float32
    if right is not None and not chooses_rows(examples[1], attributes):
        return _grouped(op, rows, rhs, right, _Product(lhs, transposed, wide))
    matrices = rhs if right is None else op.Gather(rhs, right, axis=_AXIS)
    if transposed:
        lead = op.Shape(matrices, start=0, end=-2)
        stacked = op.Reshape(matrices, op.Concat([-1], _last_dims(op, matrices), axis=0))
        turned = op.Transpose(stacked, perm=[0, 2, 1])
        matrices = op.Reshape(turned, op.Concat(lead, _last_dims(op, turned), axis=0))
    product = op.MatMul(always_cast(op, rows, wide), always_cast(op, matrices, wide))
    return op.CastLike(product, lhs)


def chooses_rows(rhs: Example | None, attributes: Mapping[str, Any]) -> bool:
    """Whether ``rhs_indices`` select along an axis of the matrices, instead of whole matrices."""
    assert rhs is not None
    return len(rhs.dims) - int(attributes["num_batch_axes"]) <= 2


class _Product:
    """The product of rows and a matrix.

    Args:
        like: A value with the dtype of the result.
        transposed: Whether the matrices are ``[N, K]``.
        wide: Accumulation dtype.
    """

    def __init__(self, like: Value, transposed: bool, wide: torch.dtype) -> None:  # noqa: FBT001 - internal
        self.like, self.transposed, self.wide = like, transposed, wide

    def __call__(self, op: OpBuilder, rows: Value, matrix: Value) -> Value:
        """Return rows ``[n, M, K]`` times one matrix, ``[n, M, N]``."""
        if self.transposed:
            matrix = op.Transpose(matrix, perm=[1, 0])
        return op.MatMul(always_cast(op, rows, self.wide), always_cast(op, matrix, self.wide))


def _grouped(op: OpBuilder, lhs: Value, rhs: Value, indices: Value, product: _Product) -> Value:
    """Multiply ``lhs [..., M, K]`` by the matrices of ``rhs`` that the indices select."""
    left, right = _numbers(op, lhs), op.Gather(_numbers(op, rhs), indices, axis=_AXIS)
    batch = op.Shape(op.Add(left, right))
    row_of, matrix_of = (op.Reshape(op.Expand(x, batch), [-1]) for x in (left, right))
    count = op.Shape(row_of)
    sorted_, order = op.TopK(matrix_of, count, axis=-1, largest=0, sorted=1, _outputs=2)
    rows_in_order = op.Gather(row_of, order, axis=0)
    matrices = op.ReduceProd(op.Shape(rhs, start=0, end=-2), keepdims=1)
    ones = op.Expand(op.const(1), count)
    sizes = op.ScatterElements(
        op.Expand(op.const(0), matrices), sorted_, ones, axis=0, reduction="add"
    )
    ends = op.CumSum(sizes, op.const(0))
    groups = _Groups(ends, op.Sub(ends, sizes), op.Squeeze(op.NonZero(sizes), [0]))
    stacked = [op.Reshape(x, _stack(op, x), allowzero=1) for x in (lhs, rhs)]
    height = op.Shape(lhs, start=-2, end=-1)
    width = op.Shape(rhs, start=-2, end=-1) if product.transposed else op.Shape(rhs, start=-1)
    nothing = op.const(torch.zeros(0, 1, 1), product.wide)
    empty = op.Expand(nothing, op.Concat([0], height, width, axis=0))
    joined = _one_by_one(op, groups, rows_in_order, stacked, empty, product)
    places = op.Range(0, op.Squeeze(count, [0]), 1)
    back = op.ScatterElements(order, order, places, axis=0)
    result = op.Gather(op.CastLike(joined, product.like), back, axis=0)
    return op.Reshape(result, op.Concat(batch, height, width, axis=0), allowzero=1)


class _Groups:
    """Ends and starts of the rows of each matrix, and the matrices that have rows."""

    def __init__(self, ends: Value, starts: Value, active: Value) -> None:
        self.ends, self.starts, self.active = ends, starts, active


def _one_by_one(
    op: OpBuilder,
    groups: _Groups,
    rows: Value,
    stacked: Sequence[Value],
    empty: Value,
    product: _Product,
) -> Value:
    """Multiply the rows of one matrix per loop iteration; return all products, concatenated.

    The products are collected in a sequence, since their lengths differ.
    """
    names, (lhs, rhs) = op.scope.names, stacked
    (first,) = op.call("", "SequenceConstruct", [empty], {})
    graph = ir.Graph([], [], nodes=[], name=names.unique("matrices"))
    inner = op.inside(op.scope.nested(graph))
    scalar, parts_type = ir.Shape([]), ir.SequenceType(ir.TensorType(ir_dtype(product.wide)))
    turn = ir.Value(name=names.unique("turn"), type=ir.TensorType(ir.DataType.INT64), shape=scalar)
    going = ir.Value(name=names.unique("going"), type=ir.TensorType(ir.DataType.BOOL), shape=scalar)
    parts = ir.Value(name=names.unique("parts"), type=parts_type)
    graph.inputs.extend([set_dims(turn, []), set_dims(going, []), parts])
    which = inner.Gather(groups.active, turn, axis=0)
    bounds = (inner.Gather(x, which, axis=0) for x in (groups.starts, groups.ends))
    begin, end = (inner.Unsqueeze(x, [0]) for x in bounds)
    chosen = inner.Gather(lhs, inner.Slice(rows, begin, end, [0]), axis=0)
    part = product(inner, chosen, inner.Gather(rhs, which, axis=0))
    (longer,) = inner.call("", "SequenceInsert", [parts, part], {})
    graph.outputs.extend([inner.Identity(going), longer])
    parts.type = None  # left to shape inference, so that the text is equal for all dtypes
    turns = op.Squeeze(op.Shape(groups.active), [0])
    (collected,) = op.call("", "Loop", [turns, None, first], {"body": graph})
    (joined,) = op.call("", "ConcatFromSequence", [collected], {"axis": 0})
    joined.dtype = ir_dtype(product.wide)
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
