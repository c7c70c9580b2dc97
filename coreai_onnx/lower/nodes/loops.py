"""Loops over steps whose number is known only at run time, and scans along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    dims_of,
    ir_dtype_of,
    maybe_dims,
    set_dims,
)

Step = Callable[[OpBuilder, list[Value]], Sequence[Value]]
NumberedStep = Callable[[OpBuilder, Value, list[Value]], Sequence[Value]]
SliceStep = Callable[[OpBuilder, list[Value], list[Value]], Sequence[Value]]
Test = Callable[[OpBuilder, list[Value]], Value]


# ---------------------------------------------------------------------- loops
def repeat(
    op: OpBuilder,
    count: Dim | Value,
    state: Sequence[Value],
    step: NumberedStep,
    test: Test | None = None,
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
    body = _body(op, "step", state, step, test)
    trips = count if isinstance(count, ir.Value) else op.dim(count)
    return _loop(op, trips, op.const(True), state, body)  # noqa: FBT003 - a value, no option


def repeat_while(op: OpBuilder, state: Sequence[Value], test: Test, step: Step) -> list[Value]:
    """Return the state after repeating ``step`` while ``test`` holds, perhaps never.

    Args:
        op: Creates the ``Loop`` node.
        state: Values before the first step; a step keeps their dtypes and dims.
        test: Returns a 0-d boolean for a state.
        step: Returns the next state; both may use values of the enclosing graph.
    """
    body = _body(op, "trip", state, lambda inner, _number, carried: step(inner, carried), test)
    return _loop(op, None, test(op, list(state)), state, body)


def _body(
    op: OpBuilder, number: str, state: Sequence[Value], step: NumberedStep, test: Test | None
) -> ir.Graph:
    names = op.scope.names
    graph = ir.Graph([], [], nodes=[], name=names.unique("loop_body"))
    inner = op.inside(op.scope.nested(graph))
    trip = ir.Value(name=names.unique(number), type=ir.TensorType(ir.DataType.INT64))
    going = ir.Value(name=names.unique("going"), type=ir.TensorType(ir.DataType.BOOL))
    carried = [_stand_in(op, x, maybe_dims(x), "carried") for x in state]
    graph.inputs.extend([set_dims(trip, ()), set_dims(going, ()), *carried])
    after = list(step(inner, trip, carried))
    on = going if test is None else test(inner, after)
    # A step may return a value twice, or one from outside; an output needs a node of its own.
    graph.outputs.extend(inner.Identity(x) for x in (on, *after))
    return graph


def _loop(
    op: OpBuilder, trips: Value | None, start: Value, state: Sequence[Value], body: ir.Graph
) -> list[Value]:
    final = list(op.Loop(trips, start, *state, body=body, _outputs=len(state)))
    for x, before in zip(final, state, strict=True):
        x.dtype, dims = ir_dtype_of(before), maybe_dims(before)
        if dims is not None:
            set_dims(x, dims)
    return final


def any_true(op: OpBuilder, x: Value) -> Value:
    """Return whether any element of a boolean tensor is true, as a 0-d boolean."""
    # ReduceMax accepts booleans only from opset 20 on.
    count = op.ReduceSum(op.Cast(x, to=int(ir.DataType.INT64)), keepdims=0)
    return op.Greater(count, 0)


# ---------------------------------------------------------------------- scans
def scan(
    op: OpBuilder, inputs: Sequence[Value], axis: int, state: Sequence[Value], step: SliceStep
) -> list[Value]:
    """Return the states after each slice, stacked along the axis.

    Args:
        op: Creates the ``Scan`` node.
        inputs: Tensors that are sliced along the axis.
        axis: The axis, which slices do not have.
        state: Values before the first slice; a step keeps their dtypes and dims.
        step: Returns the next state for a state and a slice of each input.
    """
    outputs = _scan(op, inputs, axis, state, step, stacked=True)[len(state) :]
    size = dims_of(inputs[0])[axis]
    for x, before in zip(outputs, state, strict=True):
        dims = dims_of(before)
        set_dims(x, (*dims[:axis], size, *dims[axis:]))
    return outputs


def final_state(
    op: OpBuilder, inputs: Sequence[Value], axis: int, state: Sequence[Value], step: SliceStep
) -> list[Value]:
    """Return the state after the last slice; the arguments are those of :func:`scan`."""
    outputs = _scan(op, inputs, axis, state, step, stacked=False)
    for x, before in zip(outputs, state, strict=True):
        set_dims(x, dims_of(before))
    return outputs


def scan_with_outputs(
    op: OpBuilder,
    state: Value,
    inputs: Sequence[Value],
    step: Callable[[OpBuilder, Value, list[Value]], tuple[Value, Value]],
) -> tuple[Value, Value]:
    """Return the state after the last slice, and the outputs of all steps on a new first axis.

    Args:
        op: Creates the ``Scan`` node.
        state: The state before the first slice; a step keeps its dtype and dims.
        inputs: Tensors that are sliced along their first axis.
        step: Returns the next state and an output for a state and a slice of each input.
    """
    graph = ir.Graph([], [], nodes=[], name=op.scope.names.unique("scan_body"))
    inner = op.inside(op.scope.nested(graph))
    carried = _stand_in(op, state, dims_of(state), "carried")
    slices = [_stand_in(op, x, dims_of(x)[1:], "slice") for x in inputs]
    graph.inputs.extend([carried, *slices])
    after, output = step(inner, carried, slices)
    graph.outputs.extend([set_dims(after, dims_of(state)), output])
    last, outputs = op.Scan(state, *inputs, body=graph, num_scan_inputs=len(inputs), _outputs=2)
    last.dtype, outputs.dtype = ir_dtype_of(state), ir_dtype_of(output)
    return set_dims(last, dims_of(state)), outputs


def _scan(
    op: OpBuilder,
    inputs: Sequence[Value],
    axis: int,
    state: Sequence[Value],
    step: SliceStep,
    *,
    stacked: bool,
) -> list[Value]:
    """Return the last states and, if ``stacked``, all of them along the axis."""
    graph = ir.Graph([], [], nodes=[], name=op.scope.names.unique("scan_body"))
    inner = op.inside(op.scope.nested(graph))
    carried = [_stand_in(op, x, dims_of(x), "carried") for x in state]
    slices = [_stand_in(op, x, _without(x, axis), "slice") for x in inputs]
    graph.inputs.extend([*carried, *slices])
    after = list(step(inner, carried, slices))
    # Scan returns the last states before the stacked ones. A value cannot be two outputs, so that
    # each of them is an Identity of its own.
    copies = 2 if stacked else 1
    for _ in range(copies):
        for x, before in zip(after, state, strict=True):
            graph.outputs.append(set_dims(inner.Identity(x), dims_of(before)))
    results = op.Scan(
        *state,
        *inputs,
        body=graph,
        num_scan_inputs=len(inputs),
        scan_input_axes=[axis] * len(inputs),
        scan_output_axes=[axis] * len(state) if stacked else None,
        _outputs=copies * len(state),
    )
    outputs = list(results)
    for x, before in zip(outputs, [*state] * copies, strict=True):
        x.dtype = ir_dtype_of(before)
    return outputs


def _stand_in(op: OpBuilder, x: Value, dims: Sequence[object] | None, name: str) -> Value:
    value = ir.Value(name=op.scope.names.unique(name), type=ir.TensorType(ir_dtype_of(x)))
    return value if dims is None else set_dims(value, tuple(dims))


def _without(x: Value, axis: int) -> tuple[object, ...]:
    dims = dims_of(x)
    return (*dims[:axis], *dims[axis + 1 :])
