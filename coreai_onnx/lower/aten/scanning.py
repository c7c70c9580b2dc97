"""Scans: a state carried along an axis, one output slice per input slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.values import Value, dims_of, set_dims

Step = Callable[[OpBuilder, list[Value], list[Value]], Sequence[Value]]


def scan(
    op: OpBuilder, inputs: Sequence[Value], axis: int, state: Sequence[Value], step: Step
) -> list[Value]:
    """Return the states after each slice, stacked along the axis.

    Args:
        op: Makes the ``Scan`` node.
        inputs: Tensors cut into slices along the axis.
        axis: The axis; it is gone in the slices.
        state: Values before the first slice; a step keeps their dtypes and dims.
        step: Gives the next state for a state and a slice of each input.
    """
    graph = ir.Graph([], [], nodes=[], name=op.scope.names.unique("scan_body"))
    inner = op.inside(op.scope.nested(graph))
    carried = [_stand_in(op, x, dims_of(x), "carried") for x in state]
    slices = [_stand_in(op, x, _without(x, axis), "slice") for x in inputs]
    graph.inputs.extend([*carried, *slices])
    after = [
        inner.cast(x, before.dtype)  # type: ignore[arg-type]  # values have dtypes
        for x, before in zip(step(inner, carried, slices), state, strict=True)
    ]
    finals = [inner.Identity(x) for x in after]
    stacked = [inner.Identity(x) for x in after]
    for x, before in zip([*finals, *stacked], [*state, *state], strict=True):
        set_dims(x, dims_of(before))
    graph.outputs.extend([*finals, *stacked])
    count = len(state)
    results = op.Scan(
        *state,
        *inputs,
        body=graph,
        num_scan_inputs=len(inputs),
        scan_input_axes=[axis] * len(inputs),
        scan_output_axes=[axis] * count,
        _outputs=2 * count,
    )
    size = dims_of(inputs[0])[axis]
    outputs = list(results)[count:]
    for x, before in zip(outputs, state, strict=True):
        dims = dims_of(before)
        x.dtype = before.dtype
        set_dims(x, (*dims[:axis], size, *dims[axis:]))
    for x, before in zip(list(results)[:count], state, strict=True):
        x.dtype = before.dtype
    return outputs


def _stand_in(op: OpBuilder, x: Value, dims: Sequence[object], name: str) -> Value:
    value = ir.Value(name=op.scope.names.unique(name), type=ir.TensorType(x.dtype))  # type: ignore[arg-type]
    return set_dims(value, tuple(dims))  # type: ignore[arg-type]  # dims of a value


def _without(x: Value, axis: int) -> tuple[object, ...]:
    dims = dims_of(x)
    return (*dims[:axis], *dims[axis + 1 :])
