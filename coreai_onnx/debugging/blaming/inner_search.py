"""The nodes inside of a function, a branch or the body of a loop that make its node wrong.

The values inside of branches and bodies are those of torch in the same step. The values inside of a
function are those of torch for an externalized module, whose own exported program is kept
with the record, and those of the body that the converter writes for a composite. The body of the
call is cut at these values, and its regions are compared like those of the main graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import onnx_ir as ir

from coreai_onnx.bodies.library import body_of
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.debugging.blaming.body_runs import (
    InnerValues,
    TorchSide,
    captured_by,
    inner_values,
    opened_body,
)
from coreai_onnx.debugging.blaming.causes import causes_of
from coreai_onnx.debugging.blaming.regions_run import run_all
from coreai_onnx.debugging.difference import Array, difference
from coreai_onnx.debugging.reference.regions import CutGraph, Region, cut
from coreai_onnx.debugging.reference.torch_values import results_of, tensor_of, torch_values
from coreai_onnx.errors import CoreaiError
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.lower.nodes.composite_calls import CompositeCall
from coreai_onnx.lower.nodes.values import set_dims
from coreai_onnx.model.inventory import MODULE_DOMAIN, STANDARD_DOMAIN, attribute_graphs
from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.model.provenance.source_lines import read_origins
from coreai_onnx.model.standard.model_protos import subgraphs

_MOST_CALLS = 8
"""Number of nodes of one cause whose functions are opened: each takes a session of its own."""
Inputs = Sequence[Array | None]
"""The inputs of a call; None for an omitted input."""


@dataclass(frozen=True)
class WrongCall:
    """A node that is wrong because of the nodes in its function, or in its branch or body.

    Attributes:
        position: Position of the node in the graph.
        nodes: The wrong nodes in the innermost function or body.
        steps: The iterations of the loops around them, outermost first.
        in_function: Whether they are in a function.
    """

    position: int
    nodes: tuple[ir.Node, ...]
    steps: tuple[int, ...] = ()
    in_function: bool = False


@dataclass(frozen=True)
class _Opened:
    """The cut function or body of a node.

    Attributes:
        graph: The cut graph.
        wrong: Positions of its wrong nodes.
        feeds: The right values of the graph.
        torch: What torch has computed in it.
    """

    graph: CutGraph
    wrong: tuple[int, ...]
    feeds: Mapping[str, Array]
    torch: TorchSide


def wrong_call(
    graph: CutGraph,
    positions: Sequence[int],
    feeds: Mapping[str, Array],
    torch: TorchSide,
    settings: Mapping[str, Any],
) -> WrongCall | None:
    """Return the first of some nodes whose function or body has wrong nodes, or None.

    Args:
        graph: The cut graph that has the nodes.
        positions: Positions of the nodes.
        feeds: The right values of the graph.
        torch: What torch has computed.
        settings: The settings of sessions. With kernels, functions are not searched.
    """
    for position in positions[:_MOST_CALLS]:
        node = graph.model.graph[position]
        calls = node.op_identifier() in graph.model.functions
        try:
            # A kernel does not run the nodes of the function's body.
            if calls and settings["kernels"]:
                continue
            search = _wrong_in_function if calls else _wrong_in_bodies
            inner = search(graph.model, node, feeds, torch, settings)
        except CoreaiError:  # the body, or the module, cannot be run on its own
            continue
        if inner is not None:
            deeper = wrong_call(inner.graph, inner.wrong, inner.feeds, inner.torch, settings)
            if deeper is not None:
                return replace(deeper, position=position, in_function=calls or deeper.in_function)
            nodes = tuple(inner.graph.model.graph[i] for i in inner.wrong)
            return WrongCall(position, nodes, inner.torch.steps, calls)
    return None


def _wrong_in_function(
    model: ir.Model,
    node: ir.Node,
    feeds: Mapping[str, Array],
    torch: TorchSide,
    settings: Mapping[str, Any],
) -> _Opened | None:
    """Return the opened function of a call; None if no node in it is wrong."""
    inputs = _arrays(model, node.inputs, feeds)
    expected = _expected(model, node, inputs, torch.modules)
    opened = opened_call(model, node, model.functions[node.op_identifier()], inputs)
    # The control flow that torch recorded is in the main program, not in functions.
    inner = replace(torch, origins={}, calls=lambda: ())
    return _compared(opened, expected, _by_name(opened.graph.inputs, inputs), inner, settings)


def _wrong_in_bodies(
    model: ir.Model,
    node: ir.Node,
    feeds: Mapping[str, Array],
    torch: TorchSide,
    settings: Mapping[str, Any],
) -> _Opened | None:
    """Return the opened branch or body of a node, in the first wrong step, or None."""
    for body in subgraphs(node):
        outer = captured_by(body)
        arrays = zip(outer, _arrays(model, outer, feeds), strict=True)
        captured = {value.name or "": array for value, array in arrays if array is not None}
        for call, expected in torch.runs_of(body):
            opened, inputs = opened_body(model, body, captured, call)
            inner = replace(torch, steps=call.steps)
            if deviation := _compared(opened, expected, inputs, inner, settings):
                return deviation
    return None


def _compared(
    opened: ir.Model,
    expected: InnerValues,
    inputs: Mapping[str, Array],
    torch: TorchSide,
    settings: Mapping[str, Any],
) -> _Opened | None:
    """Compare the regions of a function or body; None if all are right."""
    feeds = {**expected.results, **inputs}
    body = cut(opened, feeds)
    computed = run_all(body, feeds, body.regions, **settings)
    wrong: list[Region] = []
    right: list[Region] = []
    for region in body.regions:
        result, name = computed[region.value], region.value
        # A text says why onnxruntime cannot run the region.
        fine = not isinstance(result, str) and (
            difference(result, expected.results[name], expected.ideal[name]).ok
        )
        (right if fine else wrong).append(region)
    causes = causes_of(wrong, right)
    return _Opened(body, causes[0].nodes, feeds, torch) if causes else None


def opened_call(model: ir.Model, node: ir.Node, function: ir.Function, inputs: Inputs) -> ir.Model:
    """Return a model whose graph is the body of a call, with the attributes of the call.

    Args:
        model: The model that has the function.
        node: The call.
        function: The function to open, instead of the one of that name in the model.
        inputs: The inputs of the call, for their types.
    """
    graph = function.clone().graph
    # Outside of a function, a reference to an attribute of the call has no meaning.
    for inner in graph.all_nodes():
        for name, attribute in list(inner.attributes.items()):
            if attribute.is_ref():
                of_call = attribute.ref_attr_name or ""
                actual = node.attributes.get(of_call) or function.attributes.get(of_call)
                if actual is None or actual.value is None:
                    del inner.attributes[name]
                else:
                    inner.attributes[name] = ir.Attr(name, actual.type, actual.value)
    for value, array in zip_longest(list(graph.inputs), inputs[: len(graph.inputs)]):
        if array is None:
            for user, index in list(value.uses()):
                user.replace_input_with(index, None)
            graph.inputs.remove(value)
        else:
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = ir.Shape(array.shape)
    for domain, version in model.graph.opset_imports.items():
        graph.opset_imports.setdefault(domain, version)
    functions = [f.clone() for f in model.functions.values() if f is not function]
    return ir.Model(graph, ir_version=model.ir_version, functions=functions)


def _arrays(
    model: ir.Model, values: Sequence[ir.Value | None], feeds: Mapping[str, Array]
) -> list[Array | None]:
    """Return values of a cut model, which are computed from those that are feeds."""
    inputs = {value.name for value in model.graph.inputs}
    names = {v.name for v in values if v is not None and v.name not in inputs}
    names -= {v.name for v in values if v is not None and _constant(v) is not None}
    results: Mapping[str, Array | str] = {}
    if names:
        partial = model.clone()
        graph = partial.graph
        graph.outputs.clear()
        graph.outputs.extend(v for node in graph for v in node.outputs if v.name in names)
        results = run_all(CutGraph(partial, ()), feeds, (), kernels=False)
    arrays: list[Array | None] = []
    for value in values:
        array = None if value is None else _constant(value)
        if value is not None and array is None:
            name = value.name or ""
            array = feeds[name] if name in inputs else results[name]  # type: ignore[assignment]
        arrays.append(array)
    return arrays


def _constant(value: ir.Value) -> Array | None:
    if value.is_initializer() and value.const_value is not None:
        return value.const_value.numpy()
    return None


def _by_name(values: Sequence[ir.Value], inputs: Inputs) -> dict[str, Array]:
    arrays = (array for array in inputs if array is not None)
    return {value.name or "": array for value, array in zip(values, arrays, strict=False)}


# ---------------------------------------------------------------------- the right values
def _expected(
    model: ir.Model, node: ir.Node, inputs: Inputs, calls: Sequence[ModuleCall]
) -> InnerValues:
    if node.domain == STANDARD_DOMAIN:
        return _expected_in_composite(model, node, inputs)
    if node.domain == MODULE_DOMAIN:
        path = node.metadata_props.get(SCOPE, "")
        call = next((c for c in calls if c.path == path), None)
        if call is not None and call.leader.body is not None:
            return _expected_in_module(model, node, inputs, call)
    return InnerValues({}, {})


def _expected_in_composite(model: ir.Model, node: ir.Node, inputs: Inputs) -> InnerValues:
    """Return the values in the body that the converter writes for a call."""
    composite = COMPOSITES[node.op_type.partition(".")[0]]
    attributes = {name: a.value for name, a in node.attributes.items() if not a.is_ref()}
    values = [None if x is None else _typed(x) for x in inputs]
    call = CompositeCall(composite, ir.Node(node.domain, node.op_type, values), attributes)
    function = body_of(call, model.graph.opset_imports[""])
    opened = opened_call(model, node, function, inputs)
    fed = _by_name(opened.graph.inputs, inputs)
    outputs = [v for n in opened.graph for v in n.outputs if v.name]
    opened.graph.outputs.clear()
    opened.graph.outputs.extend(outputs)
    computed = run_all(CutGraph(opened, ()), fed, (), kernels=False)
    arrays = {name: x for name, x in computed.items() if not isinstance(x, str)}
    # The same nodes on the same inputs compute the same numbers: there is no error of torch between
    # them to allow for.
    return InnerValues(arrays, arrays)


def _typed(array: Array) -> ir.Value:
    value = ir.Value(type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))
    return set_dims(value, array.shape)


def _expected_in_module(
    model: ir.Model, node: ir.Node, inputs: Inputs, call: ModuleCall
) -> InnerValues:
    """Return the values in the exported program of an externalized module."""
    program = call.leader.body
    assert program is not None
    function = model.functions[node.op_identifier()]
    parts = {**dict(call.module.named_parameters()), **dict(call.module.named_buffers())}
    states = {f"module.{path}": tensor.detach() for path, tensor in parts.items()}
    tensors = [tensor_of(x) for x in inputs if x is not None]
    values = torch_values(program, tensors, states=states)
    flat = (n for n in function if not any(attribute_graphs(a) for a in n.attributes.values()))
    names = {value.name or "" for inner in flat for value in inner.outputs}
    origins = read_origins({}, names, dict(results_of(program)))
    outputs = zip(function.outputs, values.outputs, strict=False)
    return inner_values(origins | {v.name or "": name for v, name in outputs}, values)
