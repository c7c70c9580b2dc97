"""Loops with a known number of steps, for algorithms that iterate over the columns of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, ir_dtype_of, set_dims

Step = Callable[[OpBuilder, Value, list[Value]], Sequence[Value]]
Test = Callable[[OpBuilder, list[Value]], Value]


def repeat(
    op: OpBuilder, count: Dim | Value, state: Sequence[Value], step: Step, test: Test | None = None
) -> list[Value]:
    """Return the state after ``count`` steps, or after the first step for which ``test`` fails.

    Args:
        op: Creates the ``Loop`` node.
        count: Number of steps; a 0-d int64 value or a dim.
        state: Values before the first step; a step keeps their dtypes and dims.
        step: Returns the next state for the number of the step (0-d int64, from 0) and a state; it
            may use values of the enclosing graph.
        test: Returns a 0-d boolean for the state after a step: whether to continue.
    """
    names = op.scope.names
    graph = ir.Graph([], [], nodes=[], name=names.unique("loop_body"))
    inner = op.inside(op.scope.nested(graph))
    number = set_dims(
        ir.Value(name=names.unique("step"), type=ir.TensorType(ir.DataType.INT64)), ()
    )
    going = set_dims(ir.Value(name=names.unique("going"), type=ir.TensorType(ir.DataType.BOOL)), ())
    carried = []
    for x in state:
        dtype = ir.TensorType(ir_dtype_of(x))
        carried.append(set_dims(ir.Value(name=names.unique("carried"), type=dtype), dims_of(x)))
    graph.inputs.extend([number, going, *carried])
    after = list(step(inner, number, carried))
    on = going if test is None else test(inner, after)
    # A step may return a value twice, or one from outside; an output needs a node of its own.
    graph.outputs.extend(inner.Identity(x) for x in (on, *after))
    trips = count if isinstance(count, ir.Value) else op.dim(count)
    final = list(op.Loop(trips, op.const(True), *state, body=graph, _outputs=len(state)))
    for x, before in zip(final, state, strict=True):
        x.dtype = ir_dtype_of(before)
        set_dims(x, dims_of(before))
    return final
