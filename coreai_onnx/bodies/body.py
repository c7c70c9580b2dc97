"""Lowers a traced reference to a function body that holds for several dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.bodies.trace import Example, TracedReference
from coreai_onnx.composites import Attribute, Composite, domain_of
from coreai_onnx.errors import UnsupportedOpsError
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import AttributeRef, Names, Scope
from coreai_onnx.lower.nodes.values import Value, ir_dtype, set_dims
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.walker import Walker

_ATTRIBUTE_TYPES = {
    "int": ir.AttributeType.INT,
    "float": ir.AttributeType.FLOAT,
    "string": ir.AttributeType.STRING,
    "ints": ir.AttributeType.INTS,
    "floats": ir.AttributeType.FLOATS,
    "strings": ir.AttributeType.STRINGS,
}


@dataclass(frozen=True)
class Variant:
    """The properties of calls of a composite on which their body depends.

    Attributes:
        composite: The declaration.
        examples: One per declared input, None for an absent one.
        attributes: The structural attributes; all of them where the variant gets its name.
    """

    composite: Composite
    examples: Sequence[Example | None]
    attributes: Mapping[str, Any]

    @property
    def inputs(self) -> dict[str, Example]:
        """The inputs that calls pass, by name."""
        pairs = zip(self.composite.inputs, self.examples, strict=False)
        return {declared.name: e for declared, e in pairs if e is not None}


class BodyBuilder:
    """A function under construction: its inputs and its builder.

    Args:
        variant: The properties of its calls; inputs after the last one that they pass are omitted.
        opset: ``ai.onnx`` opset of the body.

    Attributes:
        attributes: The structural attributes.
        dtype: The dtype of the first input.
        wide: The dtype of the computation: float64 for float64, float32 otherwise.
    """

    def __init__(self, variant: Variant, opset: int) -> None:
        """Create the inputs."""
        self.variant, self.opset = variant, opset
        self.composite = composite = variant.composite
        self.attributes = variant.attributes
        self.names = Names()
        count = max(i for i, e in enumerate(variant.examples) if e is not None) + 1
        self.inputs = [ir.Value(name=self.names.unique(i.name)) for i in composite.inputs[:count]]
        graph = ir.Graph(self.inputs, [], nodes=[], opset_imports={"": opset}, name=composite.name)
        # A function has no initializers.
        self.scope = Scope(graph, self.names, constants_as_nodes=True)
        self.op = OpBuilder(self.scope, opset)
        self.dtype = torch.float32

    def type_inputs(self) -> None:
        """Give the inputs their dtypes, and keep the first one's as the dtype of the body."""
        for value, example in zip(self.inputs, self.variant.examples, strict=False):
            if example is not None:
                value.dtype = ir_dtype(example.dtype)
        first = self.variant.examples[0]
        if first is not None:
            self.dtype = first.dtype

    @property
    def wide(self) -> torch.dtype:
        """The dtype of the computation."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def widened(self, x: Value) -> Value:
        """Return a value in the dtype of the computation."""
        return self.op.cast(x, self.wide)

    def ref(self, name: str) -> AttributeRef:
        """Return an attribute that nodes of the body read from its calls."""
        return AttributeRef(name, self.composite.attribute(name).type)  # type: ignore[arg-type]

    def attribute(self, name: str) -> Value:
        """Return the value of an attribute that the body reads from its calls."""
        return self.scope.attribute(self.ref(name))

    def input(self, name: str) -> Value | None:
        """Return an input by name, or None if calls omit it."""
        for declared, value in zip(self.composite.inputs, self.inputs, strict=False):
            if declared.name == name:
                return value if value.dtype is not None else None
        return None

    def finish(self, outputs: Sequence[Value]) -> ir.Function:
        """Return the function."""
        for name, value in zip(self.composite.outputs, outputs, strict=True):
            result = value
            # An input, or a value that is two outputs, cannot be renamed: it needs its first name.
            if value.producer() is None or value.is_graph_output():
                result = self.op.Identity(value)
            result.name = self.names.unique(name)
            self.scope.graph.outputs.append(result)
        graph = self.scope.graph
        graph.doc_string = self.composite.formula
        # The body holds for other shapes and dtypes, which runtimes infer.
        generic = self.inputs[0].dtype
        for value in [*graph.inputs, *(v for n in graph.all_nodes() for v in n.outputs)]:
            value.shape, value.type = None, None
        for value in _nested_inputs(graph):
            if value.dtype == generic:  # a loop's own counter and condition need their types
                value.shape, value.type = None, None
        attributes = [_declared(a) for a in self.composite.attributes]
        attributes.append(ir.Attr("version", ir.AttributeType.INT, self.composite.version))
        domain, name = domain_of(self.composite), self.composite.name
        return ir.Function(domain, name, graph=graph, attributes=attributes)


def _nested_inputs(graph: ir.Graph) -> list[Value]:
    """Return the inputs of the graphs inside the nodes of a graph."""
    attributes = (a for n in graph.all_nodes() for a in n.attributes.values())
    nested = (a.as_graph() for a in attributes if a.type == ir.AttributeType.GRAPH)
    return [v for g in nested for v in g.inputs]


def always_cast(op: OpBuilder, x: Value, wide: torch.dtype) -> Value:
    """Cast even if redundant, so that one body holds for every dtype; onnxruntime drops no-ops."""
    return op.Cast(x, to=int(ir_dtype(wide)))


def lower_body(
    composite: Composite, examples: Sequence[Example | None], traced: TracedReference, opset: int
) -> ir.Function:
    """Lower a traced reference.

    The reference is traced in float16 for every dtype up to float32. Casts to float16 become casts
    to the dtype of the first input, so that the body holds for all these dtypes.
    """
    builder = BodyBuilder(Variant(composite, examples, {}), opset)
    by_name = {v.name: v for v in builder.inputs}
    placeholders = [n for n in traced.graph_module.graph.nodes if n.op == "placeholder"]
    context = Context(opset=opset)
    values: list[Any] = []
    for name, node in zip((*traced.inputs, *traced.scalars), placeholders, strict=True):
        if name in traced.scalars:
            values.append(builder.scope.attribute(AttributeRef(name, "float")))
            continue
        value, example = by_name[name], node.meta["val"]
        value.dtype = ir_dtype(example.dtype)
        set_dims(value, context.dims(example))
        builder.scope.dims.bind_axes(value, value.meta["dims"])
        values.append(value)
    walker = Walker(context, builder.op, traced.graph_module)
    results = walker.walk(traced.graph_module.graph, values)
    outputs = list(results) if isinstance(results, list | tuple) else [results]
    if context.missing:
        raise UnsupportedOpsError(context.missing)
    return builder.finish(_generalize(builder, outputs))


def _generalize(builder: BodyBuilder, outputs: Sequence[Value]) -> list[Value]:
    """Turn casts to float16, the dtype of the trace, into casts to the first input's dtype."""
    graph, first = builder.scope.graph, builder.inputs[0]
    replaced: dict[Value, Value] = {}
    if first.dtype != ir_dtype(torch.float16):
        return list(outputs)
    for node in graph.all_nodes():
        to = node.attributes.get("to")
        if node.op_type == "Cast" and to is not None and to.value == ir.DataType.FLOAT16:
            like = ir.node("CastLike", [node.inputs[0], first], name=node.name)
            like.metadata_props.update(node.metadata_props)
            result, new = node.outputs[0], like.outputs[0]
            new.name, new.meta["unnamed"] = result.name, False
            owner = node.graph
            assert owner is not None
            owner.insert_before(node, like)
            ir.convenience.replace_all_uses_with(result, new)
            owner.remove(node, safe=True)
            replaced[result] = new
    return [replaced.get(x, x) for x in outputs]


def _declared(attribute: Attribute) -> ir.Attr:
    """Return the declaration of an attribute, with its default if it has one."""
    type_ = _ATTRIBUTE_TYPES[attribute.type]
    default = attribute.default
    return ir.Attr(attribute.name, type_, list(default) if isinstance(default, tuple) else default)


def forget_types(graph: ir.Graph) -> None:
    """Remove types, since the body holds for other shapes too; readers infer them."""
    for value in [*graph.inputs, *(v for n in graph.all_nodes() for v in n.outputs)]:
        value.shape, value.type = None, None
