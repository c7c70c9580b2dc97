"""A part of a model as a model of its own: the nodes of one module of the user."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from coreai_onnx.errors import StagingError
from coreai_onnx.model.metadata import (
    ARGUMENTS,
    COMPLEX,
    MUTATED_INPUTS,
    RANGES,
    RELATIONS,
    STATES,
    read_complex,
    read_ranges,
    read_states,
)
from coreai_onnx.model.provenance.debug_info import CLASS, SCOPE, SOURCE
from coreai_onnx.model.provenance.places import as_read
from coreai_onnx.model.standard.model_protos import declared_type, subgraphs
from coreai_onnx.model.standard.model_types import ModelTypes
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS


def extracted(model: ir.Model, module: str) -> ir.Model:
    """Return the nodes of a module, and of the modules in it, as a model.

    Inputs are the values that these nodes read from others, in the order in which they are read;
    outputs are the values that others read, and outputs of the model. Names are those of the model.
    Weights are shared. What can be computed without an input is copied.

    Args:
        model: The model; it is not changed.
        module: Path of the module, ``encoder.layer.0``; empty for the whole model.

    Raises:
        StagingError: If no node comes from such a module; the message names similar ones.
    """
    part = model.clone()
    nodes = _nodes_of(part, module)
    if not nodes:
        # The nodes of an externalized module are in a function. Inlining loses the calls, so that
        # it is not done where the main graph has nodes of the module.
        part = _opened(model)
        nodes = _nodes_of(part, module)
    if not nodes:
        raise StagingError(_unknown(part, module))
    # The inputs and outputs of a model must have types in ONNX, those between nodes need none.
    infer_types(part)
    return _reduced(part, nodes, _outputs(part.graph, nodes))


def with_nodes(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Return some nodes as a model, with the values that others read and cannot compute alone.

    Args:
        model: A model whose nodes have names, and whose values have types; it is not changed.
        names: The nodes.
    """
    part = model.clone()
    graph = part.graph
    nodes = {node for node in graph if node.name in names}
    fixed, results = fixed_values(graph), set(graph.outputs)
    outputs = [x for x in _outputs(graph, nodes) if x not in fixed or x in results]
    return _reduced(part, nodes, outputs)


def _reduced(part: ir.Model, nodes: set[ir.Node], outputs: Sequence[ir.Value]) -> ir.Model:
    """Remove the other nodes, without those that compute constants for the first."""
    graph = part.graph
    copied = _constants_of(graph, nodes)
    kept = [node for node in graph if node in copied or node in nodes]
    graph.outputs.clear()
    # After the outputs are cleared: onnx_ir refuses to replace values that are outputs.
    inputs = _inputs(graph, kept)
    graph.outputs.extend(outputs)
    chosen = set(kept)
    graph.remove([node for node in graph if node not in chosen], safe=False)
    graph.inputs.clear()
    graph.inputs.extend(inputs)
    read = {value.name for node in kept for value in reads(node)}
    for name in [name for name in graph.initializers if name not in read]:
        del graph.initializers[name]
    RemoveUnusedFunctionsPass()(part)
    _keep_metadata(part)
    return part


def modules_of(model: ir.Model) -> list[str]:
    """Return the paths of the modules that nodes come from, and of their parents, in order."""
    paths: dict[str, None] = {}
    for node in model.graph:
        parts = node.metadata_props.get(SCOPE, "").split(".")
        paths.update(dict.fromkeys(".".join(parts[: i + 1]) for i in range(len(parts))))
    return [path for path in paths if path]


def _nodes_of(model: ir.Model, module: str) -> set[ir.Node]:
    def belongs(node: ir.Node) -> bool:
        scope = node.metadata_props.get(SCOPE, "")
        return not module or scope == module or scope.startswith(f"{module}.")

    return {node for node in model.graph if belongs(node)}


def _opened(model: ir.Model) -> ir.Model:
    """Return a copy in which the calls of externalized modules are inlined, with their places."""
    seen = as_read(model)
    for node in seen.model.graph.all_nodes():
        number = seen.number(node.name or "")
        assert number is not None
        place = seen.places[number]
        node.name = place.node
        texts = (place.where.module, place.where.module_class, place.where.source)
        entries = zip((SCOPE, CLASS, SOURCE), texts, strict=True)
        node.metadata_props.update({key: text for key, text in entries if text})
    return seen.model


def _unknown(model: ir.Model, module: str) -> str:
    modules = modules_of(model)
    if not modules:
        return f"no node comes from the module {module!r}: the model has no debug information"
    close = difflib.get_close_matches(module, modules, 5) or modules[:5]
    return f"no node comes from the module {module!r}; there are {', '.join(close)} …"


def infer_types(model: ir.Model) -> None:
    """Give every value of the main graph the type that it lacks, where it can be inferred."""
    values = [value for node in model.graph for value in node.outputs]
    if all(value.dtype is not None for value in values):
        return
    types = ModelTypes(lambda node: model.functions.get(node.op_identifier()), model.ir_version)
    inferred = types.of_graph(model.graph)
    for value in values:
        if declared_type(value) is None and (kind := inferred.get(value)) is not None:
            value.type = ir.serde.deserialize_type_proto_for_type(kind)
            value.shape = ir.serde.deserialize_type_proto_for_shape(kind)


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and the nodes of its subgraphs read."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs(node):
        for inner in graph:
            yield from reads(inner)
        yield from graph.outputs


def fixed_values(graph: ir.Graph) -> dict[ir.Value, ir.Node]:
    """Return the results that depend on no input, and the nodes that compute them."""
    # Inputs with a default may have other values in a run.
    fixed = set(graph.initializers.values()) - set(graph.inputs)
    makers: dict[ir.Value, ir.Node] = {}
    for node in graph:
        read = list(reads(node))
        is_fixed = node.domain in ONNX_DOMAINS and all(value in fixed for value in read)
        # A node without inputs may draw random numbers, as RandomNormal does.
        if node.op_type == "Constant" or (read and is_fixed):
            fixed.update(node.outputs)
            makers.update(dict.fromkeys(node.outputs, node))
    return makers


def _constants_of(graph: ir.Graph, nodes: Collection[ir.Node]) -> set[ir.Node]:
    """Return the nodes that depend on no input, and that some nodes need, without these nodes."""
    makers = fixed_values(graph)
    needed: set[ir.Node] = set()
    waiting = [value for node in nodes for value in reads(node)]
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is not None and maker not in needed and maker not in nodes:
            needed.add(maker)
            waiting += reads(maker)
    return needed


def _outputs(graph: ir.Graph, nodes: Collection[ir.Node]) -> list[ir.Value]:
    """Return the values of nodes that others read, and those that the graph returns, in order."""
    read = {value for node in graph if node not in nodes for value in reads(node)}
    results = read | set(graph.outputs)
    return [value for node in graph if node in nodes for value in node.outputs if value in results]


def _inputs(graph: ir.Graph, nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the values that nodes read and do not compute; computed ones become new inputs."""
    computed = {value for node in nodes for value in node.outputs}
    weights = set(graph.initializers.values()) - set(graph.inputs)
    local = set(graph.inputs) | {value for node in graph for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in reads(node))
    inputs = []
    for value in read:
        if value in computed or value in weights or value not in local:
            continue
        if value.producer() is None:
            inputs.append(value)
            continue
        fed = ir.Value(name=value.name, type=value.type, shape=value.shape)
        value.replace_all_uses_with(fed)
        inputs.append(fed)
    return inputs


def _keep_metadata(model: ir.Model) -> None:
    """Remove metadata about inputs, outputs and dims that the part does not have."""
    graph, metadata = model.graph, model.metadata_props
    values = (*graph.inputs, *graph.outputs)
    names = {value.name or "" for value in values}
    dims = {str(dim) for value in graph.inputs for dim in value.shape or () if dim is not None}
    ranges = {
        name: dict(zip(("min", "max"), bounds, strict=True))
        for name, bounds in read_ranges(metadata).items()
        if name in dims
    }
    pairs = [
        {"input": state.input, "output": state.output}
        for state in read_states(metadata)
        if {state.input, state.output} <= names
    ]
    kept: dict[str, object] = {
        RANGES: ranges,
        STATES: pairs,
        COMPLEX: sorted(names & read_complex(metadata)),
    }
    for key in (ARGUMENTS, MUTATED_INPUTS, RELATIONS, "coreai.entrypoints"):
        metadata.pop(key, None)
    for key, entry in kept.items():
        metadata.pop(key, None)
        if entry:
            metadata[key] = json.dumps(entry)
