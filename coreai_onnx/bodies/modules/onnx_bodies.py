"""ONNX models of any exporter as functions that other models call."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from onnx import version_converter

from coreai_onnx.bodies.body import forget_types
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import DOMAIN, ONNX_DOMAIN, USER_DOMAIN
from coreai_onnx.errors import ConversionError, reason_of
from coreai_onnx.lower.nodes.values import has_torch_dtype
from coreai_onnx.model.standard.op_schemas import schema_of
from coreai_onnx.targets.older_forms import obstacle
from coreai_onnx.targets.opsets import OPSETS

_CONSTANT_BYTES = 1024
"""Initializers up to this size become constants of the function: shapes, axes, small biases."""


@dataclass(frozen=True)
class OnnxBody:
    """A model whose larger weights are its last inputs.

    Attributes:
        name: Its name in messages and in the converted model.
        model: The model, without initializers.
        weights: How many of the last inputs are weights.
    """

    name: str
    model: ir.Model
    weights: int

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The inputs without the weights."""
        inputs = tuple(self.model.graph.inputs)
        return inputs[: len(inputs) - self.weights]

    @property
    def weight_inputs(self) -> tuple[ir.Value, ...]:
        """The inputs that are weights."""
        return tuple(self.model.graph.inputs)[len(self.inputs) :]

    def with_weights(self, weights: Sequence[ir.TensorProtocol]) -> ir.Model:
        """Return a model in which weights have values."""
        model = self.model.clone()
        graph = model.graph
        values = list(graph.inputs)[len(self.inputs) :]
        del graph.inputs[len(self.inputs) :]
        for value, tensor in zip(values, weights, strict=True):
            value.const_value = tensor
            graph.register_initializer(value)
        return model

    def functions_at(self, opset: int) -> list[ir.Function]:
        """Return functions for an opset: those of the model, and last the model itself.

        Raises:
            ConversionError: If the model cannot be converted to the opset.
        """
        model = _converted(self.model.clone(), opset, self.name)
        _rename_functions(model, self.name)
        main = ir.Function(ONNX_DOMAIN, self.name, graph=model.graph, attributes=[])
        forget_types(main.graph)
        return [*model.functions.values(), main]


def onnx_body(model: ir.Model, name: str) -> tuple[OnnxBody, list[ir.TensorProtocol]]:
    """Return a model as the body of a function, and the values of its weights.

    Args:
        model: The model; it is changed.
        name: Its name, for example the file's.
    """
    # Functions have no initializers, and neither have the subgraphs of their nodes.
    common_passes.LiftSubgraphInitializersToMainGraphPass()(model)
    graph, initial = model.graph, model.graph.initializers
    # Before IR version 4, initializers had to be inputs too.
    arguments = [value for value in graph.inputs if value.name not in initial]
    weights = [value for value in initial.values() if _is_weight(value)]
    for value in [value for value in initial.values() if not _is_weight(value)]:
        _make_constant(graph, value)
    tensors = [tensor for v in weights if (tensor := v.const_value) is not None]
    initial.clear()
    graph.inputs[:] = [*arguments, *weights]
    for value in weights:
        value.const_value = None
    _separate_outputs(graph)
    # ONNX requires op types to be identifiers.
    return OnnxBody(re.sub(r"\W", "_", name) or "model", model, len(weights)), tensors


def _is_weight(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.nbytes > _CONSTANT_BYTES and has_torch_dtype(tensor.dtype)


def _make_constant(graph: ir.Graph, value: ir.Value) -> None:
    """Replace an initializer by a node: functions have no initializers."""
    node = ir.node("Constant", [], {"value": value.const_value}, name=value.name)
    node.outputs[0].name = value.name
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    # In front, because nodes must follow those that they read.
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)
    ir.convenience.replace_all_uses_with(value, node.outputs[0], replace_graph_outputs=True)


def _separate_outputs(graph: ir.Graph) -> None:
    """Give each output a node of its own."""
    seen: set[ir.Value] = set(graph.inputs)
    names = {v.name for v in (*graph.inputs, *(v for n in graph.all_nodes() for v in n.outputs))}
    for index, value in enumerate(list(graph.outputs)):
        if value in seen:
            node = ir.node("Identity", [value], name=f"output_{index}_copy")
            copy = node.outputs[0]
            free = (f"{value.name}_{number}" for number in itertools.count(index))
            copy.name = next(name for name in free if name not in names)
            names.add(copy.name)
            copy.type, copy.shape = value.type, value.shape
            graph.append(node)
            graph.outputs[index] = copy
        seen.add(graph.outputs[index])


# ---------------------------------------------------------------------- opsets
def _converted(model: ir.Model, opset: int, name: str) -> ir.Model:
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    if not any(_changed(body, opset) for body in bodies):
        for body in bodies:
            body.opset_imports[""] = opset
        return model
    # The version converter of onnx changes nodes of the main graph only.
    common_passes.InlinePass()(model)
    source = model.graph.opset_imports.get("", 1)
    top = set(model.graph)
    nested = next((n for n in _changed(model.graph, opset) if n not in top), None)
    if nested is not None:
        raise _no_conversion(name, source, opset, f"{nested.op_type} inside a branch or loop")
    try:
        converted = version_converter.convert_version(ir.to_proto(model), opset)
        onnx.checker.check_model(converted)
    except Exception as error:  # the converter raises RuntimeError and onnx's own errors
        raise _no_conversion(name, source, opset, reason_of(error)) from error
    return ir.from_proto(converted)


def _changed(body: ir.Graph | ir.Function, opset: int) -> list[ir.Node]:
    """Return the standard nodes of a body with another definition in another opset."""
    source = body.opset_imports.get("", 1)
    if source == opset:
        return []
    return [n for n in body.all_nodes() if n.domain == "" and _differs(n, source, opset)]


def _differs(node: ir.Node, source: int, opset: int) -> bool:
    schema = schema_of(node.op_type, max(source, opset))
    if schema is None:
        return True
    if schema.since_version <= min(source, opset):
        return False
    return min(source, opset) < min(OPSETS) or bool(obstacle(node, source, opset))


def _no_conversion(name: str, source: int, opset: int, reason: str) -> ConversionError:
    return ConversionError(
        f"the ONNX model {name} of opset {source} cannot be converted to opset {opset}: {reason}",
        advice=f"convert with opset_version={source}, or export the file for opset {opset}",
    )


# ---------------------------------------------------------------------- names
def _rename_functions(model: ir.Model, name: str) -> None:
    """Move the functions of a model to the domain of ONNX models, each with a name of its own.

    Composites keep domain and name, by which onnxruntime finds their kernels.
    """
    functions = [(key, f) for key, f in model.functions.items() if not is_composite(key)]
    composites = [f for key, f in model.functions.items() if is_composite(key)]
    keys = [key for key, _ in functions]
    names = dict(zip(keys, _names(keys, name), strict=True))
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        for node in [node for node in body.all_nodes() if node.op_identifier() in names]:
            new = names[node.op_identifier()]
            node.domain, node.op_type, node.overload = ONNX_DOMAIN, new, ""
            body.opset_imports[ONNX_DOMAIN] = 1
    model.functions.clear()
    for key, function in functions:
        function.domain, function.name, function.overload = ONNX_DOMAIN, names[key], ""
        model.functions[function.identifier()] = function
    model.functions.update({function.identifier(): function for function in composites})


def is_composite(key: ir.OperatorIdentifier) -> bool:
    """Return whether a function is one that a kernel may compute instead."""
    domain, name, overload = key
    composite = COMPOSITES.get(name.partition(".")[0])
    standard = composite is not None and name in composite.op_types()
    return not overload and (domain == USER_DOMAIN or (domain == DOMAIN and standard))


def _names(functions: Sequence[ir.OperatorIdentifier], name: str) -> Iterator[str]:
    for number, (_, called, _) in enumerate(functions):
        yield f"{name}.{number}.{called}"
