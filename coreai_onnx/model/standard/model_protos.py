"""Nodes and types of a model as protos for ONNX's checks, without the data of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from coreai_onnx.model.inventory import attribute_graphs
from coreai_onnx.model.standard.onnx_rules import is_known
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS

_SMALL_BYTES = 1024
"""Maximum bytes of a constant that takes part in shape inference, since shapes depend on it."""

Attributes = Mapping[str, ir.Attr]


def node_proto(node: ir.Node, name: str, attributes: Attributes | None = None) -> onnx.NodeProto:
    """Return a node as a proto of another name, with empty graphs and without metadata.

    Args:
        node: The node.
        name: The name of the proto.
        attributes: Values of the attributes of the function that the node may refer to; None
            keeps the references.
    """
    outputs = [value.name or "" for value in node.outputs]
    while outputs and not outputs[-1]:
        outputs.pop()
    proto = onnx.NodeProto(
        op_type=node.op_type,
        domain=node.domain,
        name=name,
        input=["" if value is None else value.name or "" for value in node.inputs],
        output=outputs,
    )
    for key, attribute in node.attributes.items():
        if attribute.is_ref() and attributes is not None:
            bound = attributes.get(attribute.ref_attr_name or "")
            if bound is None:
                continue
            attribute = ir.Attr(key, bound.type, bound.value)
        _write_attribute(proto.attribute.add(), attribute)
    return proto


def _write_attribute(proto: onnx.AttributeProto, attribute: ir.Attr) -> None:
    if attribute.is_ref():
        ir.serde.serialize_reference_attribute_into(proto, attribute)
    elif attribute.type == ir.AttributeType.GRAPH:
        proto.name, proto.type = attribute.name, onnx.AttributeProto.GRAPH
        # ONNX's checker refuses graphs without a name.
        proto.g.name = "graph"
    elif attribute.type == ir.AttributeType.GRAPHS:
        proto.name, proto.type = attribute.name, onnx.AttributeProto.GRAPHS
        proto.graphs.extend(onnx.GraphProto(name="graph") for _ in attribute.as_graphs())
    else:
        ir.serde.serialize_attribute_into(proto, attribute)


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attributes.values():
        yield from attribute_graphs(attribute)


def values_read(nodes: Sequence[ir.Node]) -> dict[ir.Value, None]:
    """Return the values that nodes and the outputs of their subgraphs read, in order."""
    outputs = (value for node in nodes for graph in subgraphs(node) for value in graph.outputs)
    inputs = (v for node in nodes for v in node.inputs if v is not None and v.name)
    return dict.fromkeys((*inputs, *outputs))


def without_shape(kind: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """Return a tensor type without its shape."""
    if kind is None or not kind.HasField("tensor_type"):
        return kind
    return onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, None)


def body_input_types(
    node: ir.Node, body: ir.Graph, types: Mapping[ir.Value, onnx.TypeProto]
) -> Iterator[tuple[ir.Value, onnx.TypeProto]]:
    """Yield the types of the inputs of a body of Loop or Scan; values of other steps vary in shape.

    Args:
        node: The node, of any op.
        body: A graph in its attributes.
        types: The types of the inputs of the node.
    """
    if node.op_type not in ("Loop", "Scan"):
        return
    # The body of a Loop begins with the iteration and the condition.
    first = 2 if node.op_type == "Loop" else 0
    counters = (onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
    for value, element in zip(body.inputs[:first], counters, strict=False):
        yield value, onnx.helper.make_tensor_type_proto(element, ())
    for value, source in zip(body.inputs[first:], node.inputs[first:], strict=False):
        kind = without_shape(types.get(source)) if source is not None else None
        if kind is not None:
            yield value, kind


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a ``Constant`` node that holds one."""
    if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS:
        return None
    attribute = node.attributes.get("value")
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
        return None
    return attribute.as_tensor()


def is_large_constant(node: ir.Node) -> bool:
    """Return whether a node is a ``Constant`` that is large enough to be a weight."""
    tensor = constant_tensor(node)
    return tensor is not None and not is_small(tensor)


def declared_type(value: ir.Value) -> onnx.TypeProto | None:
    """Return the type that the model declares for a value."""
    if value.type is None:
        return None
    kind: onnx.TypeProto = ir.serde.serialize_value(value).type
    return kind if is_known(kind) else None


def is_small(tensor: ir.TensorProtocol) -> bool:
    """Return whether a tensor is a constant rather than a weight."""
    return (
        not isinstance(tensor, ir.ExternalTensor | ir.LazyTensor)
        and tensor.dtype != ir.DataType.STRING
        and tensor.nbytes <= _SMALL_BYTES
    )


def type_of_tensor(tensor: ir.TensorProtocol) -> onnx.TypeProto:
    """Return dtype and shape of a tensor without reading its data."""
    return onnx.helper.make_tensor_type_proto(int(tensor.dtype), tuple(tensor.shape.numpy()))


def small_proto(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    """Return a small tensor as a proto of another name."""
    return ir.serde.serialize_tensor(ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name))


def frozen(attribute: ir.Attr) -> bytes:
    """Return bytes that are equal for equal attributes."""
    proto = ir.serde.serialize_attribute(attribute)
    return bytes(proto.SerializeToString(deterministic=True))
