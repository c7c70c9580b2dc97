"""Grouped matrix products, where each group of rows has its own matrix, for mixtures of experts."""

from __future__ import annotations

import onnx_ir as ir
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import reduction_dtype
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    dims_of,
    dtype_of,
    ir_dtype,
    rank_of,
    set_dims,
)
from coreai_onnx.lower.walk.registry import lowers


@lowers("transformers.grouped_mm_fallback.default")
def grouped_mm_fallback(op: OpBuilder, input: Value, weight: Value, offs: Value) -> Value:
    """Rows [offs[e - 1], offs[e]) of input times weight[e]; zeros after the last group."""
    multiply = grouped_rows if op.composites is None else composed_rows
    return multiply(op, input, weight, offs)


@lowers("aten._grouped_mm.default")
def grouped_mm(
    op: OpBuilder,
    self: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: torch.dtype | None = None,
) -> Value:
    """One product per group; offs are the ends of the groups along the ragged axis."""
    dtype = out_dtype or dtype_of(self)
    left, right = op.cast(self, dtype), op.cast(mat2, dtype)
    if offs is None:
        result = op.MatMul(left, right)
    elif rank_of(self) == 2 and rank_of(mat2) == 3:
        one_dtype = dtype == dtype_of(self) == dtype_of(mat2)
        kept = op.composites is not None and bias is None and one_dtype
        result = (composed_rows if kept else grouped_rows)(op, left, right, offs)
    elif rank_of(self) == 2:
        # The ragged axis is the inner one: columns outside a group are zeroed and add nothing.
        inside = op.Unsqueeze(_membership(op, offs, dims_of(self)[1]), [1])
        result = op.MatMul(op.Where(inside, left, op.like(left, 0)), right)
    else:
        inside = op.Unsqueeze(_membership(op, offs, dims_of(mat2)[1]), [1])
        every = op.MatMul(left, right)
        chosen = op.Where(inside, every, op.like(every, 0))
        result = op.ReduceSum(chosen, [0], keepdims=0)
    return result if bias is None else op.Add(result, op.cast(bias, dtype))


def composed_rows(op: OpBuilder, x: Value, weight: Value, offs: Value) -> Value:
    """Return groups of rows of x [rows, K], each times its matrix of weight [groups, K, N].

    A weight that is the transpose of a stored one, as in linear layers, is used as stored.
    """
    rows, columns = dims_of(x)[0], dims_of(weight)[2]
    groups, ends = op.dim(dims_of(weight)[0]), op.cast(offs, torch.int64)
    # One place more than rows: the ends of trailing groups equal the number of rows.
    places = op.expand(op.const([0]), [op.Add(op.dim(rows), 1)])
    ones = op.Expand(op.const(1), op.Shape(ends))
    passed = op.CumSum(op.ScatterElements(places, ends, ones, axis=0, reduction="add"), op.const(0))
    group = op.Slice(passed, [0], [-1], [0])
    last = op.Sub(groups, 1)
    stored = _before_transpose(weight)
    # Rows after the last group are multiplied by its matrix, and zeroed below.
    matrix = set_dims(op.Min(group, last), [rows])
    x = set_dims(op.unsqueeze(x, [1]), [rows, 1, dims_of(x)[1]])
    product = op.composite(
        "gather_mm",
        [x, weight if stored is None else stored, None, matrix],
        transpose_rhs=int(stored is not None),
    )
    product = op.squeeze(set_dims(product, [rows, 1, columns]), [1])
    inside = op.Unsqueeze(op.LessOrEqual(group, last), [1])
    result = op.Where(inside, product, op.like(product, 0))
    return set_dims(result, [rows, columns])


def _before_transpose(weight: Value) -> Value | None:
    """Return the input of a transpose of the last two axes; None for other values."""
    node = weight.producer()
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    perm = node.attributes.get("perm")
    swaps = perm is not None and list(perm.as_ints()) == [0, 2, 1]
    return node.inputs[0] if swaps else None


def grouped_rows(op: OpBuilder, x: Value, weight: Value, offs: Value) -> Value:
    """Return groups of rows of x [rows, K], each times its matrix of weight [groups, K, N].

    A loop has one iteration per group with rows: no weight without rows is read, and the size of
    the graph does not depend on the number of experts. The products are collected in a sequence.
    """
    rows, columns = dims_of(x)[0], dims_of(weight)[2]
    x = op.cast(x, reduction_dtype(dtype_of(x)))  # onnxruntime has no sequences of bfloat16
    ends = op.cast(offs, torch.int64)
    starts = op.Concat(op.const([0]), op.Slice(ends, [0], [-1], [0]), axis=0)
    active = op.Squeeze(op.NonZero(op.Greater(ends, starts)), [0])
    nothing = op.const(torch.zeros(0), dtype_of(x))
    # ConcatFromSequence needs a tensor even if no group has rows.
    empty = op.expand(op.reshape(nothing, [0, 1]), [0, columns])
    (first,) = op.call("", "SequenceConstruct", [empty], {})
    graph = ir.Graph([], [], nodes=[], name=op.scope.names.unique("groups"))
    inner = op.inside(op.scope.nested(graph))
    turn, going, parts = _loop_inputs(op, x)
    graph.inputs.extend([turn, going, parts])
    group = inner.Gather(active, turn, axis=0)
    begin, end = (inner.Unsqueeze(inner.Gather(v, group, axis=0), [0]) for v in (starts, ends))
    matrix = inner.cast(inner.Gather(weight, group, axis=0), dtype_of(x))
    product = inner.MatMul(inner.Slice(x, begin, end, [0]), matrix)
    (longer,) = inner.call("", "SequenceInsert", [parts, product], {})
    graph.outputs.extend([inner.Identity(going), longer])
    count = op.Squeeze(op.Shape(active), [0])
    (collected,) = op.call("", "Loop", [count, None, first], {"body": graph})
    (joined,) = op.call("", "ConcatFromSequence", [collected], {"axis": 0})
    joined.dtype = ir_dtype(dtype_of(x))
    last = op.Slice(ends, [-1], [2**62], [0])
    unused = op.Concat(op.Sub(op.shape([rows]), last), op.shape([columns]), axis=0)
    result = op.Concat(joined, op.Expand(op.like(x, 0), unused), axis=0)
    return set_dims(result, [rows, columns])


def _loop_inputs(op: OpBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Return the inputs of the loop's body: iteration, condition, and the products so far."""
    names = op.scope.names
    scalar = ir.Shape([])
    turn = ir.Value(name=names.unique("turn"), type=ir.TensorType(ir.DataType.INT64), shape=scalar)
    going = ir.Value(name=names.unique("going"), type=ir.TensorType(ir.DataType.BOOL), shape=scalar)
    assert x.dtype is not None
    parts = ir.Value(name=names.unique("parts"), type=ir.SequenceType(ir.TensorType(x.dtype)))
    return set_dims(turn, []), set_dims(going, []), parts


def _membership(op: OpBuilder, offs: Value, size: Dim) -> Value:
    """Return a mask of the positions of an axis that belong to each group, [groups, size]."""
    ends = op.cast(offs, torch.int64)
    starts = op.Concat(op.const([0]), op.Slice(ends, [0], [-1], [0]), axis=0)
    places = op.Range(0, op.dim(size), 1)
    after = op.GreaterOrEqual(places, op.Unsqueeze(starts, [1]))
    return op.And(after, op.Less(places, op.Unsqueeze(ends, [1])))
