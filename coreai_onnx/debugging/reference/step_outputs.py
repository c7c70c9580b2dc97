"""Values of the steps of loops: in the model, and in torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.debugging.reference.control_flow import BodyCall, run_steps
from coreai_onnx.debugging.reference.torch_values import tensors_of
from coreai_onnx.debugging.reference.widened import Widened
from coreai_onnx.model.inventory import attribute_graphs

_LOOPS = ("Loop", "Scan")
_SCAN_LAYOUT = ("scan_output_axes", "scan_output_directions")


@dataclass(frozen=True)
class StepOutput:
    """A value inside of a node, and the value outside that has it.

    Attributes:
        inner: The value in the graph of the node.
        outer: The same, or all its steps stacked along a new first axis.
        stacked: Whether a loop computes it, once for each step.
        branched: Whether a branch computes it; in the other branch ``outer`` is zeros.
        level: Number of nodes around it.
    """

    inner: ir.Value
    outer: ir.Value
    stacked: bool = False
    branched: bool = False
    level: int = 0


def add_step_outputs(graph: ir.Graph, names: Collection[str]) -> list[StepOutput]:
    """Let the nodes of a graph return values that their own graphs compute.

    A loop stacks the values of its steps. Values in a loop within a loop, and values whose shape
    may change from step to step, are left out.

    Args:
        graph: The graph; its nodes and their graphs are changed.
        names: Names of the values.

    Returns:
        The values. ``outer`` is an output of a node of the graph, not of the graph itself.
    """
    sizes = {str(d) for value in graph.inputs for d in value.shape or () if not isinstance(d, int)}
    return _of_graph(graph, names, sizes)


def _of_graph(graph: ir.Graph, names: Collection[str], sizes: Collection[str]) -> list[StepOutput]:
    return [one for node in tuple(graph) for one in _of_node(node, names, sizes)]


def _of_node(node: ir.Node, names: Collection[str], sizes: Collection[str]) -> Iterator[StepOutput]:
    if node.domain not in ("", "ai.onnx"):
        return
    graphs = [one for a in node.attributes.values() for one in attribute_graphs(a)]
    # These attributes have an entry for each stacked output, and the new ones have none.
    if not graphs or any(name in node.attributes for name in _SCAN_LAYOUT):
        return
    outputs = [[*_of_graph(graph, names, sizes), *_copies(graph, names)] for graph in graphs]
    if node.op_type in _LOOPS:
        stacked = [one for one in outputs[0] if _is_stackable(one, sizes)]
        # Loop and Scan stack what their body returns after the carried values.
        graphs[0].outputs.extend(one.outer for one in stacked)
        yield from _raised(node, [replace(one, stacked=True) for one in stacked])
    elif node.op_type == "If":
        # Both branches of an ONNX If return the same number of outputs.
        for index, graph in enumerate(graphs):
            for position, branch in enumerate(outputs):
                same = position == index
                graph.outputs.extend(x.outer if same else _zeros(graph, x) for x in branch)
        yield from _raised(node, [replace(x, branched=True) for branch in outputs for x in branch])


def _copies(graph: ir.Graph, names: Collection[str]) -> Iterator[StepOutput]:
    """Yield the values of a graph itself; a copy may be an output beside the value."""
    for node in tuple(graph):
        for value in node.outputs:
            if value.name in names and value.dtype is not None and value.shape is not None:
                # A value that is an output already cannot be one twice.
                copy = ir.node("Identity", [value])
                graph.append(copy)
                copy.outputs[0].name = f"{value.name}#0"
                yield StepOutput(value, _typed(copy.outputs[0], value))


def _raised(node: ir.Node, inner: Sequence[StepOutput]) -> Iterator[StepOutput]:
    """Append outputs to a node for what its graphs return."""
    count = len(node.outputs)
    node.resize_outputs(count + len(inner))
    for one, outer in zip(inner, node.outputs[count:], strict=True):
        outer.name = f"{one.inner.name}#{one.level + 1}"
        yield replace(one, outer=_typed(outer, one.inner), level=one.level + 1)


def _typed(value: ir.Value, like: ir.Value) -> ir.Value:
    assert like.dtype is not None
    value.type = ir.TensorType(like.dtype)
    return value


def _zeros(graph: ir.Graph, one: StepOutput) -> ir.Value:
    """Append zeros for a value of the other branch; a dim without a number becomes 1."""
    assert one.inner.dtype is not None
    assert one.inner.shape is not None
    shape = [size if isinstance(size, int) else 1 for size in one.inner.shape]
    array = np.zeros([1, *shape] if one.stacked else shape, one.inner.dtype.numpy())
    node = ir.node("Constant", [], {"value": ir.tensor(array, dtype=one.inner.dtype)})
    graph.append(node)
    node.outputs[0].name = f"{one.inner.name}#zeros{one.level}"
    return _typed(node.outputs[0], one.inner)


def _is_stackable(one: StepOutput, sizes: Collection[str]) -> bool:
    """Whether all steps of a loop have a value of the same shape."""
    assert one.inner.shape is not None
    # The sizes of the inputs are those of the whole call; another dim may change from step to step,
    # and a Loop can only stack equal shapes.
    same = all(isinstance(d, int) or (str(d) in sizes) for d in one.inner.shape)
    # In steps that take the other branch, zeros must have the same shape.
    numbers = all(isinstance(d, int) for d in one.inner.shape)
    return not one.stacked and (numbers if one.branched else same)


Steps = dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]]
"""A value and its float64 result by the iterations of the loops around it, outermost first."""


def step_values(program: ExportedProgram, inputs: Sequence[Any]) -> dict[str, Steps]:
    """Return the values in the graphs that the nodes of a program call on ``inputs``.

    Returns:
        Steps by path of the graph and FX node, ``while_loop_body_graph_0/mul``. Empty if operators
        draw random numbers, so that another run has other values.

    Raises:
        ComparisonError: If the program cannot be run.
    """
    values: dict[str, Steps] = {}
    with Widened() as widened:

        def keep(call: BodyCall, node: fx.Node, result: Any) -> None:
            for name, tensor in tensors_of(node, result):
                pair = tensor.detach(), widened.ideal(tensor).detach()
                values.setdefault(f"{call.path}/{name}", {})[call.steps] = pair

        run_steps(program, inputs, on_result=keep)
    return {} if widened.random else values
