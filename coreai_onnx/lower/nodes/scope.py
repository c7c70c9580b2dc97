"""A graph under construction: its names, constants, dims, and location in the user's model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir
import torch

from coreai_onnx.errors import Where
from coreai_onnx.lower.nodes.dim_table import DimTable
from coreai_onnx.lower.nodes.values import Value, set_dims
from coreai_onnx.model.checks.violations import TORCH_OP, WHERE

_DEDUPLICATED_BYTES = 4096
"""Bounds the bytes that are hashed for each constant; axes, shapes and scalars are far smaller."""
_REF_ATTRIBUTES = {
    "float": ("value_float", ir.AttributeType.FLOAT, ir.DataType.FLOAT),
    "int": ("value_int", ir.AttributeType.INT, ir.DataType.INT64),
    "ints": ("value_ints", ir.AttributeType.INTS, ir.DataType.INT64),
    "string": ("value_string", ir.AttributeType.STRING, ir.DataType.STRING),
}


class AttributeRef:
    """A number that a function body reads from the attribute of the calling node.

    Args:
        name: Attribute of the enclosing function.
        type: ONNX attribute type.
    """

    def __init__(self, name: str, type: Literal["int", "float", "string", "ints"]) -> None:
        """Store the name and type."""
        self.name, self.type = name, type


@dataclass(frozen=True)
class TracedNode:
    """Data from the exported program about the node being lowered, besides its arguments.

    Attributes:
        inputs: Example of each input node, in order; strides and storage offset are significant.
        result: Example of the result; a list of examples for several results.
        op: The op of the user's program, ``aten.add.Tensor``.
    """

    inputs: tuple[Any, ...] = ()
    result: Any = None
    op: str = ""

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes of the results that are tensors."""
        results = self.result if isinstance(self.result, list | tuple) else (self.result,)
        return tuple(x.dtype for x in results if isinstance(x, torch.Tensor))


class Names:
    """Generates names that are unique in a model, reproducibly."""

    def __init__(self) -> None:
        """Start without names; nodes and values have separate namespaces."""
        self._taken: dict[str, int] = {}
        self._taken_by_nodes: Names | None = None
        self._taken_by_dims: Names | None = None

    @property
    def nodes(self) -> Names:
        """The names of nodes."""
        if self._taken_by_nodes is None:
            self._taken_by_nodes = Names()
        return self._taken_by_nodes

    @property
    def dims(self) -> Names:
        """The names of sizes that are local to one nested graph."""
        if self._taken_by_dims is None:
            self._taken_by_dims = Names()
        return self._taken_by_dims

    def unique(self, name: str) -> str:
        """Return ``name``, with the lowest unused number appended if it is in use."""
        candidate = name
        # To start at the last number keeps many equal names linear in time.
        count = self._taken.get(name, 0)
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken[name] = count
        self._taken.setdefault(candidate, 0)
        return candidate


class Scope:
    """The main graph, a function body, or a graph nested in one of them.

    Args:
        graph: Receives the nodes.
        names: Names of values and nodes, shared by nested scopes.
        parent: The enclosing scope, whose values are visible here.
        constants_as_nodes: Whether constants are ``Constant`` nodes instead of initializers, which
            function bodies cannot have.

    Attributes:
        where: The location in the user's model that is being lowered.
    """

    def __init__(
        self,
        graph: ir.Graph,
        names: Names,
        *,
        parent: Scope | None = None,
        constants_as_nodes: bool = False,
    ) -> None:
        """Start without constants."""
        self.graph, self.names, self.parent = graph, names, parent
        self.root: Scope = parent.root if parent is not None else self
        self.constants_as_nodes = constants_as_nodes
        self.dims: DimTable = DimTable(parent.dims if parent is not None else None)
        self._constants: dict[Any, Value] = {}
        self.where: Where | None = parent.where if parent is not None else None
        self.traced = TracedNode()

    def nested(self, graph: ir.Graph) -> Scope:
        """Return a scope for a graph attribute of a node of this scope."""
        return Scope(graph, self.names, parent=self, constants_as_nodes=self.constants_as_nodes)

    def append(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
        outputs: int = 1,
        domain: str = "",
    ) -> ir.Node:
        """Append a node, named after the module of its origin, and return it."""
        module = self.where.module if self.where is not None else ""
        name = self.names.nodes.unique(f"{module}.{op_type}" if module else op_type)
        node = ir.node(
            op_type,
            inputs=list(inputs),
            attributes=_ref_attributes(attributes),
            domain=domain,
            num_outputs=outputs,
            name=name,
        )
        for i, value in enumerate(node.outputs):
            value.name = self.names.unique(f"{name}.{i}" if outputs > 1 else name)
            # The walker renames the results of an op to their names in the exported program.
            value.meta["unnamed"] = True
        if self.where is not None:
            node.metadata_props.update(location_metadata(self.where))
            node.meta[WHERE] = self.where
        if self.traced.op:
            node.meta[TORCH_OP] = self.traced.op
        self.graph.append(node)
        return node

    def constant(self, tensor: ir.TensorProtocol, name: str | None = None) -> Value:
        """Return the value of a constant; equal small constants share one value."""
        # Nested graphs see the values of the root, so a constant is stored once for all of them.
        if self.root is not self:
            return self.root.constant(tensor, name)
        # A constant with a name of its own is to be found by it, even if another has equal values.
        small = tensor.nbytes <= _DEDUPLICATED_BYTES and name is None
        key = None
        if small:
            # The table would otherwise hold a second copy of every constant.
            digest = hashlib.sha256(tensor.tobytes()).digest()
            key = (tensor.dtype, tuple(tensor.shape.numpy()), digest)
            if key in self._constants:
                return self._constants[key]
        value = self._make_constant(tensor, self.names.unique(name or "const"))
        if key is not None:
            self._constants[key] = value
        return value

    def _make_constant(self, tensor: ir.TensorProtocol, name: str) -> Value:
        if self.constants_as_nodes:
            node = ir.node("Constant", [], {"value": tensor}, name=name)
            self.graph.append(node)
            value = node.outputs[0]
            value.name = name
            value.const_value = tensor
        else:
            tensor.name = name
            value = ir.Value(name=name, const_value=tensor)
            self.graph.register_initializer(value)
        # onnx_ir does not infer it from the tensor.
        value.dtype = tensor.dtype
        return set_dims(value, tuple(tensor.shape.numpy()))

    def attribute(self, ref: AttributeRef) -> Value:
        """Return the value of an attribute of the enclosing function, read once."""
        if self.root is not self:
            return self.root.attribute(ref)
        if (key := ("attribute", ref.name)) not in self._constants:
            attribute, type_, dtype = _REF_ATTRIBUTES[ref.type]
            node = ir.node("Constant", [], num_outputs=1, name=self.names.unique(ref.name))
            node.attributes[attribute] = ir.RefAttr(attribute, ref.name, type_)
            self.graph.append(node)
            value = node.outputs[0]
            value.name, value.dtype = self.names.unique(f"{ref.name}_value"), dtype
            self._constants[key] = set_dims(value, ()) if ref.type != "ints" else value
        return self._constants[key]


def location_metadata(where: Where) -> dict[str, str]:
    """Return the metadata of a node about its location in the user's model."""
    entries = {
        "coreai.scope": where.module,
        "coreai.class": where.module_class,
        "coreai.source": where.source,
    }
    return {key: text for key, text in entries.items() if text}


def _ref_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Convert references to attributes of the enclosing function to ONNX reference attributes."""
    result = {}
    for name, value in attributes.items():
        if isinstance(value, AttributeRef):
            value = ir.RefAttr(name, value.name, _REF_ATTRIBUTES[value.type][1])
        result[name] = value
    return result
