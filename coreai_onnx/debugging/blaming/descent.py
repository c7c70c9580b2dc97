"""The nodes inside of a function, a branch or the body of a loop that make its node wrong.

The values inside of branches and bodies are those of torch in the same step. The values inside of a
function are those of torch for an externalized module, whose own exported program is kept
with the record, and those of the body that the converter writes for a composite. The body of the
call is cut at these values, and its regions are judged like those of the main graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import onnx_ir as ir

from coreai_onnx.bodies.library import body_of
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.debugging.blaming.body_runs import TorchSide, Truth, captured_by, opened_body
from coreai_onnx.debugging.blaming.regions_run import run_all
from coreai_onnx.debugging.blaming.suspects import groups
from coreai_onnx.debugging.reference.regions import CutGraph, cut
from coreai_onnx.debugging.reference.true_values import as_stored, results_of, true_values_of
from coreai_onnx.debugging.verdict.difference import Array
from coreai_onnx.debugging.verdict.yardstick import judge
from coreai_onnx.errors import CoreaiError
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.lower.nodes.composite_calls import CompositeCall
from coreai_onnx.lower.nodes.values import set_dims
from coreai_onnx.model.inventory import MODULE_DOMAIN, STANDARD_DOMAIN, attribute_graphs
from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.model.provenance.source_lines import read_origins
from coreai_onnx.model.standard.model_protos import subgraphs

_MOST_CALLS = 8
"""Number of suspects whose functions are opened."""
Inputs = Sequence[Array | None]
"""The inputs of a call; None for an omitted input."""


@dataclass(frozen=True)
class GuiltyCall:
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
        right: The right values of the graph.
        torch: What torch has computed in it.
    """

    graph: CutGraph
    wrong: tuple[int, ...]
    right: Mapping[str, Array]
    torch: TorchSide


def guilty_call(
    graph: CutGraph,
    positions: Sequence[int],
    known: Mapping[str, Array],
    torch: TorchSide,
    *,
    kernels: bool = False,
) -> GuiltyCall | None:
    """Return the first of some nodes whose function or body has wrong nodes, or None.

    Args:
        graph: The cut graph that has the nodes.
        positions: Positions of the nodes.
        known: The right values of the graph.
        torch: What torch has computed.
        kernels: Whether kernels are run; functions are not searched then.
    """
    for position in positions[:_MOST_CALLS]:
        calls = graph.model.graph[position].op_identifier() in graph.model.functions
        inner = None
        if not calls:
            inner = _wrong_in_bodies(graph, position, known, torch, kernels=kernels)
        elif not kernels:
            inner = _wrong_in_function(graph, position, known, torch)
        if inner is not None:
            found = inner.graph, inner.wrong, inner.right, inner.torch
            deeper = guilty_call(*found, kernels=kernels)
            if deeper is not None:
                return replace(deeper, position=position, in_function=calls or deeper.in_function)
            nodes = tuple(inner.graph.model.graph[i] for i in inner.wrong)
            return GuiltyCall(position, nodes, inner.torch.steps, calls)
    return None


def _wrong_in_function(
    graph: CutGraph, position: int, known: Mapping[str, Array], torch: TorchSide
) -> _Opened | None:
    """Return the opened function of a call; None if no node in it is wrong."""
    node = graph.model.graph[position]
    function = graph.model.functions[node.op_identifier()]
    try:
        inputs = _arrays(graph.model, position, known, lambda call: call.inputs)
        truth = _truth(graph.model, node, inputs, torch.modules)
        opened = opened_call(graph.model, node, function, inputs)
        # The control flow that torch recorded is in the main program, not in functions.
        inner = replace(torch, origins={}, calls=lambda: ())
        return _judged(opened, truth, _by_name(opened.graph.inputs, inputs), inner)
    except CoreaiError:  # the body, or the module, cannot be run on its own
        return None


def _wrong_in_bodies(
    graph: CutGraph, position: int, known: Mapping[str, Array], torch: TorchSide, *, kernels: bool
) -> _Opened | None:
    """Return the opened branch or body of a node, in the first wrong step, or None."""
    try:
        for index, body in enumerate(subgraphs(graph.model.graph[position])):
            captured = _captured(graph.model, position, known, index)
            for call, truth in torch.runs_of(body):
                opened, inputs = opened_body(graph.model, body, captured, call)
                inner = replace(torch, steps=call.steps)
                if found := _judged(opened, truth, inputs, inner, kernels=kernels):
                    return found
    except CoreaiError:  # a body cannot be run on its own
        return None
    return None


def _judged(
    opened: ir.Model,
    truth: Truth,
    inputs: Mapping[str, Array],
    torch: TorchSide,
    *,
    kernels: bool = False,
) -> _Opened | None:
    """Judge the regions of a function or body; None if all are right."""
    right = {**truth.own, **inputs}
    body = cut(opened, right)
    computed = run_all(body, right, body.regions, kernels=kernels)
    judged = {}
    for region in body.regions:
        result, own = computed[region.value], truth.own[region.value]
        # A text says why onnxruntime cannot run the region.
        judged[region.value] = not isinstance(result, str) and (
            judge(result, own, truth.ideal[region.value]).ok
        )
    wrong = [region for region in body.regions if not judged[region.value]]
    fine = [region for region in body.regions if judged[region.value]]
    first = next(iter(groups(wrong, fine)), None)
    return None if first is None else _Opened(body, first.nodes, right, torch)


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
                _replace(inner, name, _given(node, function, attribute))
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


def _given(node: ir.Node, function: ir.Function, reference: ir.Attr) -> ir.Attr | None:
    name = reference.ref_attr_name or ""
    return node.attributes.get(name) or function.attributes.get(name)


def _replace(node: ir.Node, name: str, given: ir.Attr | None) -> None:
    """Replace a reference to an attribute by its value; remove it if a call has none."""
    if given is None or given.value is None:
        del node.attributes[name]
    else:
        node.attributes[name] = ir.Attr(name, given.type, given.value)


def _captured(
    model: ir.Model, position: int, known: Mapping[str, Array], index: int
) -> dict[str, Array]:
    """Return the values that a body of a node reads from outside, by name."""

    def read(node: ir.Node) -> list[ir.Value | None]:
        return [*captured_by(list(subgraphs(node))[index])]

    names = [value.name or "" for value in read(model.graph[position]) if value is not None]
    arrays = _arrays(model, position, known, read)
    return {n: array for n, array in zip(names, arrays, strict=True) if array is not None}


def _arrays(
    model: ir.Model,
    position: int,
    known: Mapping[str, Array],
    select: Callable[[ir.Node], Sequence[ir.Value | None]],
) -> list[Array | None]:
    """Return values that a node of a cut graph reads."""
    made = model.clone()
    graph = made.graph
    values = select(graph[position])
    fed = set(graph.inputs)
    computed = [v for v in values if v is not None and v not in fed and _constant(v) is None]
    graph.outputs.clear()
    graph.outputs.extend(dict.fromkeys(computed))
    results: Mapping[str, Array] = {}
    if computed:
        results = run_all(CutGraph(made, ()), known, (), kernels=False)  # type: ignore[assignment]
    arrays: list[Array | None] = []
    for value in values:
        name = "" if value is None else value.name or ""
        constant = None if value is None else _constant(value)
        if value is None or constant is not None:
            arrays.append(constant)
        else:
            arrays.append(known[name] if value in fed else results[name])
    return arrays


def _constant(value: ir.Value) -> Array | None:
    if value.is_initializer() and value.const_value is not None:
        return value.const_value.numpy()
    return None


def _by_name(values: Sequence[ir.Value], inputs: Inputs) -> dict[str, Array]:
    given = (array for array in inputs if array is not None)
    return {value.name or "": array for value, array in zip(values, given, strict=False)}


# ---------------------------------------------------------------------- the right values
def _truth(model: ir.Model, node: ir.Node, inputs: Inputs, calls: Sequence[ModuleCall]) -> Truth:
    if node.domain == STANDARD_DOMAIN:
        return _truth_of_composite(model, node, inputs)
    if node.domain == MODULE_DOMAIN:
        path = node.metadata_props.get(SCOPE, "")
        call = next((c for c in calls if c.path == path), None)
        if call is not None and call.leader.body is not None:
            return _truth_of_module(model, node, inputs, call)
    return Truth({}, {})


def _truth_of_composite(model: ir.Model, node: ir.Node, inputs: Inputs) -> Truth:
    """Return the values in the body that the converter writes for a call."""
    composite = COMPOSITES[node.op_type.partition(".")[0]]
    attributes = {name: a.value for name, a in node.attributes.items() if not a.is_ref()}
    values = [None if x is None else _typed(x) for x in inputs]
    call = CompositeCall(composite, ir.Node(node.domain, node.op_type, values), attributes)
    function = body_of(call, model.graph.opset_imports[""])
    opened = opened_call(model, node, function, inputs)
    fed = _by_name(opened.graph.inputs, inputs)
    watched = [v for n in opened.graph for v in n.outputs if v.name]
    opened.graph.outputs.clear()
    opened.graph.outputs.extend(watched)
    values_inside = run_all(CutGraph(opened, ()), fed, (), kernels=False)
    found = {name: x for name, x in values_inside.items() if not isinstance(x, str)}
    # The same nodes on the same inputs compute the same numbers: there is no error of torch between
    # them to allow for.
    return Truth(found, found)


def _typed(array: Array) -> ir.Value:
    value = ir.Value(type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))
    return set_dims(value, array.shape)


def _truth_of_module(model: ir.Model, node: ir.Node, inputs: Inputs, call: ModuleCall) -> Truth:
    """Return the values in the exported program of an externalized module."""
    program = call.leader.body
    assert program is not None
    function = model.functions[node.op_identifier()]
    own = {**dict(call.module.named_parameters()), **dict(call.module.named_buffers())}
    states = {f"module.{path}": tensor.detach() for path, tensor in own.items()}
    given = [x for x in inputs if x is not None]
    found = true_values_of(program, given, None, states)
    names = {v.name or "" for v in _values(function)}
    origins = read_origins({}, names, dict(results_of(program)))
    origins |= {
        value.name or "": name for value, name in zip(function.outputs, found.outputs, strict=False)
    }
    known = {name: of for name, of in origins.items() if of in found.own}
    known = {name: of for name, of in known.items() if of not in found.undetermined}
    return Truth(
        {name: as_stored(found.own[of]) for name, of in known.items()},
        {name: as_stored(found.ideal[of]) for name, of in known.items()},
    )


def _values(function: ir.Function) -> Iterator[ir.Value]:
    for node in function:
        if not any(attribute_graphs(a) for a in node.attributes.values()):
            yield from node.outputs
