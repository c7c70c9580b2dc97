"""Loops inside a lowering, for algorithms that repeat until nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, dims_of, ir_dtype_of, maybe_dims, set_dims

Step = Callable[[OpBuilder, list[Value]], Sequence[Value]]
Test = Callable[[OpBuilder, list[Value]], Value]


def repeat_while(op: OpBuilder, state: Sequence[Value], test: Test, step: Step) -> list[Value]:
    """Return the state after repeating ``step`` while ``test`` holds.

    Args:
        op: Creates the ``Loop`` node.
        state: Values before the first step; a step keeps their dtypes and dims.
        test: Returns a 0-d boolean for a state.
        step: Returns the next state; both may use values of the enclosing graph.
    """
    graph = ir.Graph([], [], nodes=[], name=op.scope.names.unique("loop_body"))
    inner = op.inside(op.scope.nested(graph))
    names = op.scope.names
    trip = ir.Value(
        name=names.unique("trip"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([])
    )
    going = ir.Value(
        name=names.unique("going"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([])
    )
    carried = [_like(x, names.unique("carried")) for x in state]
    graph.inputs.extend([trip, going, *carried])
    after = list(step(inner, carried))
    outputs = [test(inner, after), *after]
    # A step may return a value twice, or one from outside; an output needs a node of its own.
    graph.outputs.extend(inner.Identity(x) for x in outputs)
    final = list(op.Loop(None, test(op, list(state)), *state, body=graph, _outputs=len(state)))
    for x, before in zip(final, state, strict=True):
        x.dtype = ir_dtype_of(before)
        if maybe_dims(before) is not None:
            set_dims(x, dims_of(before))
    return final


def any_true(op: OpBuilder, x: Value) -> Value:
    """Return whether any element of a boolean tensor is true, as a 0-d boolean."""
    # ReduceMax accepts booleans only from opset 20 on.
    count = op.ReduceSum(op.Cast(x, to=int(ir.DataType.INT64)), keepdims=0)
    return op.Greater(count, 0)


def _like(x: Value, name: str) -> Value:
    copy = ir.Value(name=name, type=ir.TensorType(ir_dtype_of(x)))
    dims = maybe_dims(x)
    return copy if dims is None else set_dims(copy, dims)
