"""The branches and bodies of If, Loop and Scan as models, with what torch has computed in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.reference.control_flow import BodyCall
from coreai_onnx.debugging.reference.torch_values import TorchValues, as_stored, torch_values_in
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.model.python.structure import captured

_MOST_STEPS = 64
"""Number of steps of a loop that are searched: each opens a session, 10 ms of CPU for a layer of
64 × 64 (x86-64, 2026-11)."""


@dataclass(frozen=True)
class InnerValues:
    """The right values inside of a function or body by name, and in float64."""

    results: dict[str, Array]
    ideal: dict[str, Array]


@dataclass(frozen=True)
class TorchSide:
    """What torch has computed inside of nodes.

    Attributes:
        modules: The externalized modules.
        origins: Names of the values in bodies to torch's results.
        calls: Returns the calls of branches and bodies in torch, with all loops around them.
        steps: The iterations of the loops around the present graph.
    """

    modules: Sequence[ModuleCall]
    origins: Mapping[str, str]
    calls: Callable[[], Sequence[BodyCall]]
    steps: tuple[int, ...] = ()

    def runs_of(self, body: ir.Graph) -> Iterator[tuple[BodyCall, InnerValues]]:
        """Yield the runs of a branch or body in the present step, with the right values in it.

        Raises:
            ComparisonError: If torch cannot run the body.
        """
        by_path: dict[str, dict[str, str]] = {}
        for name in (value.name or "" for node in body for value in node.outputs):
            if name in self.origins:
                path, _, result = self.origins[name].rpartition("/")
                by_path.setdefault(path, {})[name] = result
        depth = len(self.steps)
        # A loop within a loop runs once in each step of the outer one: only the runs in the present
        # step have the values of the graph around it.
        calls = [c for c in self.calls() if c.path in by_path and c.steps[:depth] == self.steps]
        steps = {call.steps for call in calls}
        for call in calls[:_MOST_STEPS]:
            values = torch_values_in(call.graph, call.operands)
            # A loop's condition comes first.
            outputs = body.outputs[len(body.outputs) - len(values.outputs) :]
            pairs = zip(outputs, values.outputs, strict=True)
            ends = {v.name or "": name for v, name in pairs if name and v.producer()}
            expected = inner_values(by_path[call.path] | ends, values)
            if len(body.outputs) > len(values.outputs):
                # torch has the condition in a graph of its own.
                again = (*call.steps[:-1], call.steps[-1] + 1) in steps
                condition = {body.outputs[0].name or "": np.array(again)}
                expected = InnerValues(expected.results | condition, expected.ideal | condition)
            yield call, expected


def inner_values(origins: Mapping[str, str], values: TorchValues) -> InnerValues:
    """Return torch's results by the names of a function or body, whose ``origins`` they are."""
    origins = {
        name: of
        for name, of in origins.items()
        if of in values.results and of not in values.undetermined
    }
    return InnerValues(
        {name: as_stored(values.results[of]) for name, of in origins.items()},
        {name: as_stored(values.ideal[of]) for name, of in origins.items()},
    )


def captured_by(body: ir.Graph) -> list[ir.Value]:
    """Return the values that a body reads from outside."""
    return list(dict.fromkeys(captured(body)))


def opened_body(
    model: ir.Model, body: ir.Graph, outer: Mapping[str, Array], call: BodyCall
) -> tuple[ir.Model, dict[str, Array]]:
    """Return a model of a branch or body, and its inputs in a call.

    ``outer`` has the arrays of the values that it reads from outside.
    """
    graph = body.clone(allow_outer_scope_values=True)
    inputs = _inputs(graph, call)
    for value, array in zip(graph.inputs, inputs.values(), strict=True):
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
    for value in captured_by(graph):
        name = value.name or ""
        array = outer[name]
        inner = ir.Value(name=name, type=value.type, shape=ir.Shape(array.shape))
        # Fed as an input, a weight would not be a constant, which some operators require.
        if value.is_initializer() and value.const_value is not None:
            inner.const_value = value.const_value
            graph.register_initializer(inner)
        else:
            inner.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            graph.inputs.append(inner)
            inputs[name] = array
        _replace(graph, value, inner)
    # ONNX has opsets for models and functions, not for subgraphs.
    graph.opset_imports.update(model.graph.opset_imports)
    functions = [function.clone() for function in model.functions.values()]
    return ir.Model(graph, ir_version=model.ir_version, functions=functions), inputs


def _replace(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    for node in graph.all_nodes():
        for index, value in enumerate(node.inputs):
            if value is old:
                node.replace_input_with(index, new)
    for inner in (graph, *graph.subgraphs()):
        for index, value in enumerate(inner.outputs):
            if value is old:
                inner.outputs[index] = new


def _inputs(body: ir.Graph, call: BodyCall) -> dict[str, Array]:
    """Return the inputs of a body: those of a Loop begin with the iteration and the condition."""
    results = call.graph.graph.output_node().args[0]
    count = len(results) if isinstance(results, list | tuple) else 1
    arrays: list[Array] = []
    if len(body.outputs) > count:
        arrays = [np.array(call.steps[-1]), np.ones((), np.bool_)]
    # The further operands of torch are values that a body in ONNX reads from outside.
    for operand in call.operands[: len(body.inputs) - len(arrays)]:
        is_tensor = isinstance(operand, torch.Tensor)
        arrays.append(as_stored(operand) if is_tensor else np.asarray(operand))
    return dict(zip((value.name or "" for value in body.inputs), arrays, strict=True))
