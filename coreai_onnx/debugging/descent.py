"""The nodes inside of a function that make its call wrong.

The values inside are those of torch for an externalized module, whose own exported program is kept
with the record, and those of the body that the converter writes for a composite. The body of the
call is cut at these values, and its regions are judged like those of the main graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import onnx_ir as ir

from coreai_onnx.composite_ops import COMPOSITES
from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.execution import run_all
from coreai_onnx.debugging.regions import CutGraph, cut
from coreai_onnx.debugging.suspects import groups
from coreai_onnx.debugging.true_values import as_stored, results_of, true_values_of
from coreai_onnx.debugging.yardstick import judge
from coreai_onnx.errors import CoreaiError
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.functions.library import body_of
from coreai_onnx.lower.composites import CompositeCall
from coreai_onnx.lower.values import set_dims
from coreai_onnx.model.debug_info import SCOPE
from coreai_onnx.model.inventory import MODULE_DOMAIN, STANDARD_DOMAIN, attribute_graphs
from coreai_onnx.model.value_origins import read_origins

_MOST_CALLS = 8
"""Number of suspects whose functions are opened."""
Inputs = Sequence[Array | None]
"""The inputs of a call; None for an absent one."""


@dataclass(frozen=True)
class _Truth:
    """The right values inside of a function by name, and in float64."""

    own: Mapping[str, Array]
    ideal: Mapping[str, Array]


@dataclass(frozen=True)
class GuiltyCall:
    """A call that is wrong because of its function.

    Attributes:
        position: Position of the call in the graph.
        nodes: The wrong nodes in the innermost function.
    """

    position: int
    nodes: tuple[ir.Node, ...]


def guilty_call(
    graph: CutGraph,
    positions: Sequence[int],
    known: Mapping[str, Array],
    calls: Sequence[ModuleCall],
) -> GuiltyCall | None:
    """Return the first of some nodes that calls a function with wrong nodes; None without any.

    Args:
        graph: The cut graph that has the nodes.
        positions: Positions of the nodes.
        known: The right values of the graph.
        calls: The externalized modules.
    """
    for position in positions[:_MOST_CALLS]:
        inner = _wrong(graph, position, known, calls)
        if inner is not None:
            body, wrong, right = inner
            deeper = guilty_call(body, wrong, right, calls)
            nodes = tuple(body.model.graph[i] for i in wrong)
            return GuiltyCall(position, nodes if deeper is None else deeper.nodes)
    return None


def _wrong(
    graph: CutGraph, position: int, known: Mapping[str, Array], calls: Sequence[ModuleCall]
) -> tuple[CutGraph, tuple[int, ...], Mapping[str, Array]] | None:
    """Return the cut body of a call, its wrong nodes and its right values; None without any."""
    node = graph.model.graph[position]
    function = graph.model.functions.get(node.op_identifier())
    if function is None:
        return None
    try:
        inputs = _inputs(graph.model, position, known)
        truth = _truth(graph.model, node, inputs, calls)
        opened = opened_call(graph.model, node, function, inputs)
        right = {**truth.own, **_by_name(opened.graph.inputs, inputs)}
        body = cut(opened, right)
        computed = run_all(body, right, body.regions, kernels=False)
    except CoreaiError:  # the body, or the module, cannot be run on its own
        return None
    judged = {}
    for region in body.regions:
        result, own = computed[region.value], truth.own[region.value]
        judged[region.value] = not isinstance(result, str) and (
            judge(result, own, truth.ideal[region.value]).ok
        )
    wrong = [region for region in body.regions if not judged[region.value]]
    fine = [region for region in body.regions if judged[region.value]]
    first = next(iter(groups(wrong, fine)), None)
    return None if first is None else (body, first.nodes, right)


def opened_call(model: ir.Model, node: ir.Node, function: ir.Function, inputs: Inputs) -> ir.Model:
    """Return a model whose graph is the body of a call, with the attributes of the call.

    Args:
        model: The model that has the function.
        node: The call.
        function: The function to open, instead of the one of that name in the model.
        inputs: The inputs of the call, for their types.
    """
    graph = function.clone().graph
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


def _inputs(model: ir.Model, position: int, known: Mapping[str, Array]) -> list[Array | None]:
    """Return the inputs of a node in a cut graph."""
    made = model.clone()
    graph = made.graph
    node = graph[position]
    fed = set(graph.inputs)
    computed = [v for v in node.inputs if v is not None and v not in fed and _constant(v) is None]
    graph.outputs.clear()
    graph.outputs.extend(dict.fromkeys(computed))
    results: Mapping[str, Array] = {}
    if computed:
        results = run_all(CutGraph(made, ()), known, (), kernels=False)  # type: ignore[assignment]
    arrays: list[Array | None] = []
    for value in node.inputs:
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
def _truth(model: ir.Model, node: ir.Node, inputs: Inputs, calls: Sequence[ModuleCall]) -> _Truth:
    if node.domain == STANDARD_DOMAIN:
        return _truth_of_composite(model, node, inputs)
    if node.domain == MODULE_DOMAIN:
        path = node.metadata_props.get(SCOPE, "")
        call = next((c for c in calls if c.path == path), None)
        if call is not None and call.leader.body is not None:
            return _truth_of_module(model, node, inputs, call)
    return _Truth({}, {})


def _truth_of_composite(model: ir.Model, node: ir.Node, inputs: Inputs) -> _Truth:
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
    return _Truth(found, found)


def _typed(array: Array) -> ir.Value:
    value = ir.Value(type=ir.TensorType(ir.DataType.from_numpy(array.dtype)))
    return set_dims(value, array.shape)


def _truth_of_module(model: ir.Model, node: ir.Node, inputs: Inputs, call: ModuleCall) -> _Truth:
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
    return _Truth(
        {name: as_stored(found.own[of]) for name, of in known.items()},
        {name: as_stored(found.ideal[of]) for name, of in known.items()},
    )


def _values(function: ir.Function) -> Iterator[ir.Value]:
    for node in function:
        if not any(attribute_graphs(a) for a in node.attributes.values()):
            yield from node.outputs
