"""The constants of a model: which are written in place, and what the others are called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from coreai_onnx.model.inventory import graphs
from coreai_onnx.model.python.builder.tensors import constant, content_key
from coreai_onnx.model.python.layout import Expression
from coreai_onnx.model.python.literals import literal

MOST_FLOATS = 4
"""Fractions in a constant that is written in place: more of them are weights."""
MOST_INDICES = 8
"""Whole numbers in a list that is written in place although it has the name of a weight."""
_SPELLINGS = ("value_int", "value_ints", "value_float", "value_floats", "value_string",
              "value_strings")  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A constant.

    Attributes:
        key: What identifies its content; the name of a weight.
        text: The constant in Python; None for a weight.
    """

    key: str
    text: Expression | None


class Constants:
    """The constants of a model, in all its graphs and functions."""

    def __init__(self, model: ir.Model) -> None:
        self.weights: dict[str, ir.TensorProtocol] = {}
        self._names: dict[int, str] = {}  # of the tensors in weights
        self._known: dict[ir.Value, Known] = {}
        self._nodes: set[ir.Node] = set()
        inputs = set(model.graph.inputs)
        taken = self._taken = {name for graph in graphs(model) for name in graph.initializers}
        for graph in graphs(model):
            for name, value in graph.initializers.items():
                if value.const_value is not None:
                    unique = name if graph is model.graph else _unused(f"{name}.inner", taken)
                    # An input is given a value by its name, and a constant without uses is written
                    # nowhere.
                    by_name = value in inputs or not value.uses()
                    # A dot is in the names of a module's parameters, which are weights however
                    # small they are.
                    by_name |= "." in name and not _is_index(value.const_value)
                    self._add(value, value.const_value, unique, by_name=by_name)
            for node in graph:
                tensor = constant_of(node)
                if tensor is None or not (value := node.outputs[0]).uses():
                    continue
                if not value.is_graph_output():
                    self._nodes.add(node)
                    unique = _unused(value.name or "constant", taken)
                    self._add(value, tensor, unique, by_name=False)

    def _add(self, value: ir.Value, tensor: ir.TensorProtocol, name: str, *, by_name: bool) -> None:
        text = None if by_name or not _is_small(tensor) else literal(tensor)
        if text is None:
            self._add_weight(name, tensor)
        self._known[value] = Known(name if text is None else content_key(tensor), text)

    def attribute_weight(self, node: ir.Node, attribute: ir.Attr) -> str:
        """Return the name of a large tensor in an attribute; it becomes a weight."""
        tensor = attribute.as_tensor()
        if id(tensor) not in self._names:
            name = _unused(f"{node.name or node.op_type}.{attribute.name}", self._taken)
            self._add_weight(name, tensor)
        return self._names[id(tensor)]

    def _add_weight(self, name: str, tensor: ir.TensorProtocol) -> None:
        self.weights[name] = tensor
        self._names.setdefault(id(tensor), name)

    def of(self, value: ir.Value | None) -> Known | None:
        """Return what is known about a value, or None if it is not a constant."""
        return None if value is None else self._known.get(value)

    def is_literal_node(self, node: ir.Node) -> bool:
        """Whether a node is a Constant that is written where it is used."""
        return node in self._nodes

    def is_weight(self, name: str) -> bool:
        """Whether there is a weight of this name."""
        return name in self.weights

    def relative(self, value: ir.Value, path: tuple[str, ...]) -> str | None:
        """Return what a constant is within a module; None if it comes from outside."""
        constant = self._known.get(value)
        if constant is None:
            return None
        if constant.text is not None:
            return f"c:{constant.key}"
        prefix = ".".join(path) + "."
        return f"w:{constant.key[len(prefix) :]}" if constant.key.startswith(prefix) else None

    def under(self, path: tuple[str, ...], values: Iterable[ir.Value | None]) -> bool:
        """Whether one of the values is a weight of a module."""
        prefix = ".".join(path) + "."
        constants = (self.of(value) for value in values)
        return any(k is not None and k.text is None and k.key.startswith(prefix) for k in constants)


def _is_index(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor is what operators take as axes, sizes or an index."""
    is_list = tensor.dtype == ir.DataType.INT64 and len(tensor.shape) <= 1
    return is_list and tensor.size <= MOST_INDICES


def _is_small(tensor: ir.TensorProtocol) -> bool:
    return tensor.size <= MOST_FLOATS or not tensor.dtype.is_floating_point()


def _unused(name: str, taken: set[str]) -> str:
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    taken.add(unique)
    return unique


def constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, or None if it has no fixed value."""
    if node.op_type != "Constant" or node.domain != "" or len(node.attributes) != 1:
        return None
    name = spelling_of(node)
    attribute = node.attributes[name]
    if attribute.is_ref():
        return None
    if name == "value":
        return attribute.as_tensor()
    if name not in _SPELLINGS:
        return None
    items = attribute.value
    return constant(list(items) if name.endswith("s") else items) if items != () else None


def spelling_of(node: ir.Node) -> str:
    """Return the attribute of a Constant node that holds its value: ``value_ints``."""
    return next(iter(node.attributes))
