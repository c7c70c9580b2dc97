"""The branches and bodies of If, Loop and Scan as models, with what torch has computed in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from coreai_onnx.debugging.reference.control_flow import BodyCall
from coreai_onnx.debugging.reference.true_values import TrueValues, as_stored, true_values_in
from coreai_onnx.debugging.verdict.difference import Array
from coreai_onnx.export.externalize.module_call import ModuleCall

_MOST_STEPS = 64
"""Number of steps of a loop that are searched."""


@dataclass(frozen=True)
class Truth:
    """The right values inside of a function or body by name, and in float64."""

    own: Mapping[str, Array]
    ideal: Mapping[str, Array]


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

    def runs_of(self, body: ir.Graph) -> Iterator[tuple[BodyCall, Truth]]:
        """Yield the runs of a branch or body in the present step, with the right values in it.

        Raises:
            ComparisonError: If torch cannot run the body.
        """
        names = [value.name or "" for node in body for value in node.outputs]
        inside = {name: self.origins[name] for name in names if name in self.origins}
        paths = {of.rpartition("/")[0] for of in inside.values()}
        depth = len(self.steps)
        # A loop within a loop runs once in each step of the outer one: only the runs in the present
        # step have the values of the graph around it.
        calls = [c for c in self.calls() if c.path in paths and c.steps[:depth] == self.steps]
        steps = {call.steps for call in calls}
        for call in calls[:_MOST_STEPS]:
            found = true_values_in(call.graph, call.operands)
            results = {
                name: of.rpartition("/")[2]
                for name, of in inside.items()
                if of.rpartition("/")[0] == call.path
            }
            results |= _outputs(body, found)
            yield call, _truth(body, results, found, again=_next(call.steps) in steps)


def _next(steps: tuple[int, ...]) -> tuple[int, ...]:
    return (*steps[:-1], steps[-1] + 1) if steps else ()


def _outputs(body: ir.Graph, found: TrueValues) -> dict[str, str]:
    """Map the outputs of a body to torch's results; a loop's condition comes first."""
    first = len(body.outputs) - len(found.outputs)
    pairs = zip(body.outputs[first:], found.outputs, strict=True)
    return {value.name or "": name for value, name in pairs if name and value.producer()}


def _truth(body: ir.Graph, results: Mapping[str, str], found: TrueValues, *, again: bool) -> Truth:
    known = {
        name: of for name, of in results.items() if of in found.own and of not in found.undetermined
    }
    own = {name: as_stored(found.own[of]) for name, of in known.items()}
    ideal = {name: as_stored(found.ideal[of]) for name, of in known.items()}
    # ONNX's Loop returns the condition first; torch has it in a graph of its own.
    if len(body.outputs) > len(found.outputs):
        condition = {body.outputs[0].name or "": np.array(again)}
        own, ideal = own | condition, ideal | condition
    return Truth(own, ideal)


def captured_by(body: ir.Graph) -> list[ir.Value]:
    """Return the values that a body reads from outside."""
    inside = {body, *body.subgraphs()}
    values = [value for node in body.all_nodes() for value in node.inputs]
    values += [value for graph in inside for value in graph.outputs]
    return list(dict.fromkeys(v for v in values if v is not None and v.graph not in inside))


def opened_body(
    model: ir.Model, body: ir.Graph, captured: Mapping[str, Array], call: BodyCall
) -> tuple[ir.Model, dict[str, Array]]:
    """Return a model of a branch or body, and its inputs in a call.

    Args:
        model: The model that has it.
        body: The body.
        captured: What it reads from outside.
        call: The call.
    """
    graph = body.clone(allow_outer_scope_values=True)
    inputs = _given(graph, call)
    for value, array in zip(graph.inputs, inputs.values(), strict=True):
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
    for outer in captured_by(graph):
        array = captured[outer.name or ""]
        made = ir.Value(name=outer.name, type=outer.type, shape=ir.Shape(array.shape))
        # Fed as an input, a weight would not be a constant, which some operators require.
        if outer.is_initializer() and outer.const_value is not None:
            made.const_value = outer.const_value
            graph.register_initializer(made)
        else:
            made.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            graph.inputs.append(made)
            inputs[outer.name or ""] = array
        _replace(graph, outer, made)
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


def _given(body: ir.Graph, call: BodyCall) -> dict[str, Array]:
    """Return the inputs of a body: those of a Loop begin with the iteration and the condition."""
    names = [value.name or "" for value in body.inputs]
    outputs = len(call_results(call))
    counters: list[Array] = []
    if len(body.outputs) > outputs:
        counters = [np.array(call.steps[-1]), np.ones((), np.bool_)]
    # The further operands of torch are values that a body in ONNX reads from outside.
    arrays = [_array(x) for x in call.operands[: len(names) - len(counters)]]
    return dict(zip(names, [*counters, *arrays], strict=True))


def call_results(call: BodyCall) -> Sequence[object]:
    """Return the results of a graph as its output node has them."""
    results = call.graph.graph.output_node().args[0]
    return results if isinstance(results, list | tuple) else [results]


def _array(operand: object) -> Array:
    return as_stored(operand) if isinstance(operand, torch.Tensor) else np.asarray(operand)
