"""Graphs in front of a model and behind it: written as ONNX text, joined to the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from coreai_onnx.huggingface.surroundings.merging import take_functions, take_weights
from coreai_onnx.model.inventory import attribute_graphs
from coreai_onnx.model.metadata import ARGUMENTS, RANGES, RELATIONS

EXTENSIONS = "ai.onnx.contrib"
"""The domain of the operators of onnxruntime-extensions."""
VISION = "com.microsoft.extensions"
"""The domain of its operators for pictures."""
DOMAINS = {"com.microsoft": 1, "ai.onnx.ml": 3, EXTENSIONS: 1, VISION: 1}


def graph_of(
    text: str,
    opset: int,
    constants: Mapping[str, Any],
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
) -> ir.Model:
    """Return a model from the text of its graph.

    Args:
        text: The graph in ONNX's text form, ``name (inputs) => (outputs) { nodes }``.
        opset: The opset of the model that it will be joined to.
        constants: The values that the text reads and does not compute, by name.
        attributes: Attributes that are too large for a text, by the first output of their node.
    """
    imports = ", ".join(f'"{domain}": {v}' for domain, v in {"": opset, **DOMAINS}.items())
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]>\n{text}")
    for name, array in ((name, np.asarray(value)) for name, value in constants.items()):
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype) if array.dtype.kind != "U" else 8
        values = array.ravel().tolist()
        proto.graph.initializer.append(onnx.helper.make_tensor(name, dtype, array.shape, values))
    model = ir.from_proto(proto)
    for node in model.graph.all_nodes():
        for name, value in (attributes or {}).get(str(node.outputs[0].name), {}).items():
            node.attributes.add(ir.convenience.convert_attribute(name, value))
    for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
        del model.graph.initializers[name]
    for domain in set(DOMAINS) - {node.domain for node in model.graph.all_nodes()}:
        del model.graph.opset_imports[domain]
    return model


def put_in_front(model: ir.Model, front: ir.Model) -> None:
    """Compute inputs of a model by another one; its inputs take their place.

    Args:
        model: The model; changed in place.
        front: Its outputs are named like the inputs that they replace; outputs that the model does
            not take are dropped. It is consumed and must not be used again.
    """
    results = {value.name: value for value in front.graph.outputs}
    replaced = [value for value in model.graph.inputs if value.name in results]
    place = model.graph.inputs.index(replaced[0])
    inputs, nodes = _taken(model, front, "before.")
    for value in replaced:
        model.graph.inputs.remove(value)
        result = results[value.name]
        value.name = f"{value.name}."  # the name now belongs to the result
        ir.convenience.replace_all_uses_with(value, result)
        # Passes infer the rest of the model from these dims.
        result.type, result.shape = value.type, value.shape
    names = {value.name: value for value in model.graph.inputs}
    for value in inputs:
        if value.name in names:  # both read it
            ir.convenience.replace_all_uses_with(value, names[value.name])
        else:
            model.graph.inputs.insert(place, value)
            place += 1
    first = next(iter(model.graph))
    model.graph.insert_before(first, nodes)
    _forget_dims(model)


def put_behind(model: ir.Model, behind: ir.Model) -> None:
    """Compute further results from outputs of a model, and return them in their place.

    Args:
        model: The model; changed in place.
        behind: Its inputs are named like the outputs or inputs of the model that it reads; others
            become inputs of the model. It is consumed and must not be used again.
    """
    outputs = {value.name: value for value in model.graph.outputs}
    values = {**{value.name: value for value in model.graph.inputs}, **outputs}
    results = list(behind.graph.outputs)
    names = [str(value.name) for value in results]
    inputs, nodes = _taken(model, behind, "after.")
    for value in inputs:
        if value.name in values:
            ir.convenience.replace_all_uses_with(value, values[value.name])
            if value.name in outputs:
                model.graph.outputs.remove(outputs[value.name])
        else:
            model.graph.inputs.append(value)
    for name, value in zip(names, results, strict=True):
        value.name = name
    model.graph.extend(nodes)
    model.graph.outputs.extend(results)
    _forget_dims(model)


def _taken(model: ir.Model, part: ir.Model, prefix: str) -> tuple[list[ir.Value], list[ir.Node]]:
    """Move functions, weights and nodes of a part to a model; return its inputs and nodes."""
    take_functions(model, part)
    take_weights(model.graph, part.graph, prefix)
    inputs, outputs = list(part.graph.inputs), list(part.graph.outputs)
    part.graph.inputs.clear()
    part.graph.outputs.clear()
    nodes = list(part.graph)
    part.graph.remove(nodes)
    attributes = [attribute for node in nodes for attribute in node.attributes.values()]
    inner = [node for a in attributes for g in attribute_graphs(a) for node in g.all_nodes()]
    for node in (*nodes, *inner):
        node.name = f"{prefix}{node.name or node.outputs[0].name}"
        for value in node.outputs:
            if value not in outputs:
                value.name = f"{prefix}{value.name}"
    return inputs, nodes


def _forget_dims(model: ir.Model) -> None:
    """Drop what metadata say of arguments and dims that no input has any more."""
    metadata = model.metadata_props
    metadata.pop(ARGUMENTS, None)
    dims = {str(dim) for value in model.graph.inputs for dim in value.shape or ()}
    if RANGES in metadata:
        ranges = {k: v for k, v in json.loads(metadata[RANGES]).items() if k in dims}
        metadata[RANGES] = json.dumps(ranges)
    # Conditions on sizes that callers no longer choose.
    metadata.pop(RELATIONS, None)
