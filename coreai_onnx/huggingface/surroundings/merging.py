"""Inputs of a model that another model computes in the first call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from coreai_onnx.errors import ConversionError
from coreai_onnx.huggingface.encoder_decoders import SOURCE

_PREFIX = "first_call."


def compute_inputs_in_first_call(
    model: ir.Model, first: ir.Model, flag: str, outputs: Mapping[str, str]
) -> None:
    """Let a model compute some of its inputs in its first call, and return them.

    Adds the input ``flag``, bool ``[1]``, and an ``If``: if it is true, the inputs are used as they
    are, otherwise their values are the outputs of ``first``.

    Args:
        model: The model; changed in place.
        first: Computes the inputs, from inputs that ``model`` has too. It is
            consumed and must not be used again.
        flag: Name of the new input.
        outputs: The name of the new output with the value, by the name of the input.

    Raises:
        ConversionError: If both models have a function of the same name with another body.
    """
    take_functions(model, first)
    graph, inputs = model.graph, {value.name: value for value in model.graph.inputs}
    inner = first.graph
    # Nodes are moved in this order, and must stay in topological order.
    inner.sort()
    for value in list(inner.inputs):
        ir.convenience.replace_all_uses_with(value, inputs[value.name])
    computed = list(inner.outputs)
    order = [str(value.name) for value in computed]
    take_weights(graph, inner, _PREFIX)
    nodes = list(inner)
    # A value can be an output of one graph only, and the branch takes these.
    inner.outputs.clear()
    inner.remove(nodes)
    for node in nodes:
        node.name = f"{_PREFIX}{node.name}" if node.name else None
        for value in node.outputs:
            # Names are unique in a graph and its subgraphs, and both models come from one exporter.
            value.name = f"{_PREFIX}{value.name}"
    flag_value = ir.Value(name=flag, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1]))
    graph.inputs.append(flag_value)
    chosen = [_like(inputs[name], outputs[name]) for name in order]
    for name in order:
        # After ``_like`` has copied the shapes: results keep theirs.
        _any_length(inputs[name])
    for name, value in zip(order, chosen, strict=True):
        ir.convenience.replace_all_uses_with(inputs[name], value)
    branch = ir.node(
        "If",
        [flag_value],
        {
            "then_branch": _passed([inputs[name] for name in order]),
            "else_branch": ir.Graph([], computed, nodes=nodes, name="first_call"),
        },
        outputs=chosen,
        name=flag,
    )
    # Before all nodes, which may read the chosen values.
    graph.insert_before(next(iter(graph)), branch)
    graph.outputs.extend(chosen)


def _passed(values: Sequence[ir.Value]) -> ir.Graph:
    """Return a branch that returns values of the graph around it."""
    copies = [_like(value, f"{value.name}_as_it_is") for value in values]
    pairs = zip(values, copies, strict=True)
    # onnxruntime refuses a branch that returns a value of the outer graph without a node.
    nodes = [ir.node("Identity", [value], outputs=[copy]) for value, copy in pairs]
    return ir.Graph([], copies, nodes=nodes, name="later_calls")


def _like(value: ir.Value, name: str) -> ir.Value:
    return ir.Value(name=name, type=value.type, shape=value.shape)


def _any_length(value: ir.Value) -> None:
    """Give an input a length of its own: runtimes pass an empty one in the first call."""
    assert value.shape is not None
    batch, heads, _, size = value.shape
    value.shape = ir.Shape([batch, heads, f"past_{SOURCE}", size])


def take_weights(graph: ir.Graph, inner: ir.Graph, prefix: str) -> None:
    """Move the initializers of one graph to another, under names with a prefix."""
    for name, value in list(inner.initializers.items()):
        del inner.initializers[name]
        value.name = f"{prefix}{name}"
        graph.register_initializer(value)


def take_functions(model: ir.Model, first: ir.Model) -> None:
    """Move the functions and opset imports of a model to another one.

    Raises:
        ConversionError: If both have a function of the same name with another body.
    """
    for key, function in first.functions.items():
        there = model.functions.setdefault(key, function)
        if there is not function and not _same(there, function):
            raise ConversionError(
                f"two models to join have different functions {key[1]}",
                advice="please report this model",
            )
    for domain, version in first.opset_imports.items():
        model.graph.opset_imports.setdefault(domain, version)


def _same(left: ir.Function, right: ir.Function) -> bool:
    texts = [ir.to_proto(function).SerializeToString() for function in (left, right)]
    return bool(texts[0] == texts[1])
