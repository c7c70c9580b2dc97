"""Digests of nodes and weights that do not depend on names: op, attributes, contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.files.saving import EXTERNAL_TENSOR_BYTES
from coreai_onnx.model.inventory import op_name

_CHUNK = 1 << 24


def tensor_digest(tensor: ir.TensorProtocol) -> str:
    """Return a hash of dtype, shape and bytes; a tensor in a file is read by memory mapping."""
    whole = hashlib.blake2b(_type(tensor).encode(), digest_size=16)
    for part in _bytes(tensor):
        whole.update(part)
    return whole.hexdigest()


def attribute_text(attribute: ir.Attr) -> str:
    """Return an attribute's value as text; tensors and graphs as a hash of their contents."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return f"{value.dtype.name.lower()}{list(value.shape)} {tensor_digest(value)[:12]}"
    if attribute.type == ir.AttributeType.GRAPH:
        return f"graph {graph_digest(value)[:12]}"
    if attribute.type == ir.AttributeType.FLOAT:
        # ONNX stores float32; before a model is saved, its attributes have the digits of float64.
        return str(np.float32(value))
    return str(list(value)) if isinstance(value, list | tuple) else str(value)


def attribute_texts(node: ir.Node) -> dict[str, str]:
    """Return every attribute of a node as text, sorted by name."""
    return {name: attribute_text(node.attributes[name]) for name in sorted(node.attributes)}


def node_label(node: ir.Node) -> str:
    """Return ``ai.coreai::rms_norm`` for a call, ``Add`` for an ONNX operator."""
    return op_name(node.domain, node.op_type)


def local_digest(node: ir.Node) -> str:
    """Return a hash of op, attributes, number of inputs and the constants among them.

    Only the dtype and shape of weights are hashed: reading all weights to match nodes would take
    longer than the rest of a comparison.
    """
    parts = [node_label(node), str(attribute_texts(node)), str(len(node.outputs))]
    for value in node.inputs:
        if value is None:
            parts.append("absent")
        elif value.is_initializer() and value.const_value is not None:
            tensor = value.const_value
            parts.append(tensor_digest(tensor) if _is_small(tensor) else _type(tensor))
        else:
            parts.append("value")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def graph_digest(graph: ir.Graph | ir.Function) -> str:
    """Return a hash of a graph that does not depend on names of nodes and intermediate values."""
    names: dict[ir.Value, str] = {
        value: f"input {position}" for position, value in enumerate(graph.inputs)
    }
    if isinstance(graph, ir.Graph):
        for name, value in graph.initializers.items():
            tensor = value.const_value
            names.setdefault(value, name if tensor is None else tensor_digest(tensor))
    lines = []
    for node in graph:
        inputs = [
            "absent" if value is None else names.get(value, f"outer {value.name}")
            for value in node.inputs
        ]
        text = "\n".join([node_label(node), str(attribute_texts(node)), *inputs])
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        lines.append(digest)
        names.update({value: f"{digest}.{i}" for i, value in enumerate(node.outputs)})
    ends = [names.get(value, "outer") for value in graph.outputs]
    # The order of nodes that do not depend on each other is irrelevant.
    text = "\n".join([*sorted(lines), "->", *ends])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _is_small(tensor: ir.TensorProtocol) -> bool:
    if isinstance(tensor, ir.ExternalTensor):
        return False
    return tensor.dtype == ir.DataType.STRING or tensor.nbytes < EXTERNAL_TENSOR_BYTES


def _type(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _bytes(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    if isinstance(tensor, ir.StringTensor):
        yield b"\0".join(tensor.string_data())
        return
    array = np.ascontiguousarray(tensor.numpy()).reshape(-1)
    if array.size:
        data = array.view(np.uint8).data
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]
