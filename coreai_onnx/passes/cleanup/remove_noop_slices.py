"""Removes slices that keep everything."""

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import bypass_nodes
from coreai_onnx.passes.engine.match import Dim, input_of, ints_of, shape_of
from coreai_onnx.passes.engine.why import Why

_OPEN_END = 2**31 - 1
"""Exporters write an end of INT32_MAX or INT64_MAX for "to the end"."""


def remove_noop_slices(graph: gs.Graph, why: Why) -> int:
    """Slice from 0 to the end with step 1 on all its axes → nothing.

    x ─Slice(starts=[0], ends=[INT64_MAX])→ y ─Relu→ z     becomes     x ─Relu→ z
    """
    return bypass_nodes(graph, why, ("Slice",), _keeps_all)


def _keeps_all(node: gs.Node, why: Why) -> bool:
    starts_input, ends_input = input_of(node, 1), input_of(node, 2)
    if starts_input is None or ends_input is None:
        return why("starts and ends are attributes, as before opset 10", node)
    starts, ends = ints_of(starts_input), ints_of(ends_input)
    if starts is None or ends is None:
        return why("starts or ends are computed", node)
    axes_input, steps_input = input_of(node, 3), input_of(node, 4)
    axes = list(range(len(starts))) if axes_input is None else ints_of(axes_input)
    steps = [1] * len(starts) if steps_input is None else ints_of(steps_input)
    if axes is None or steps is None:
        return why("axes or steps are computed", node)
    if any(step != 1 for step in steps):
        return False
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return why("starts, ends, axes and steps are not of one length", node)
    shape = shape_of(node.inputs[0])
    for start, end, axis in zip(starts, ends, axes, strict=True):
        dim: Dim = None
        if shape is not None and -len(shape) <= axis < len(shape):
            dim = shape[axis]
        starts_first = start == 0 or (isinstance(dim, int) and start <= -dim)
        ends_last = end >= (dim if isinstance(dim, int) else _OPEN_END)
        if not (starts_first and ends_last):
            return False
    return True
