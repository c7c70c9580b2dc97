"""Calls of operators and functions as Python expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from coreai_onnx.errors import SaveError
from coreai_onnx.model.python.builder.attributes import declared_types, default_of
from coreai_onnx.model.python.builder.names import same_attribute
from coreai_onnx.model.python.builder.schemas import default_outputs, fault_of, schema_of
from coreai_onnx.model.python.constants import Constants
from coreai_onnx.model.python.identifiers import is_plain
from coreai_onnx.model.python.layout import Bracket, Expression, Named, call, keyed, listed, quoted
from coreai_onnx.model.python.literals import annotation, float32_text, literal, type_name

Kind = ir.AttributeType
_DTYPES = ("to", "dtype", "output_dtype", "softmax_precision")
"""Attributes that hold an element type as a number."""


@dataclass
class Callee:
    """A function of the model, as Python calls it.

    Attributes:
        name: Its name in Python.
        function: The function.
        attributes: Attribute to keyword.
    """

    name: str
    function: ir.Function
    attributes: Mapping[str, str]


@dataclass
class Calls:
    """How nodes are written in one graph.

    Attributes:
        constants: The constants of the model.
        functions: The functions of the model.
        opsets: Domain to the Python name of its operators.
        versions: Domain to version, where the nodes are.
        parameters: Attributes of the enclosing function, and their names in Python.
        kinds: Types of those attributes, as far as their defaults show them.
        weight: Returns the expression of a weight.
    """

    constants: Constants
    functions: Mapping[ir.OperatorIdentifier, Callee]
    opsets: Mapping[str, str]
    versions: Mapping[str, int]
    weight: Callable[[str], str]
    parameters: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)

    def head(self, node: ir.Node) -> str:
        """Return what is called: ``op.MatMul``, ``rms_norm``."""
        callee = self.functions.get(node.op_identifier())
        if callee is not None:
            return callee.name
        opset = self.opsets[node.domain]
        names, count = node.attributes.keys(), len(node.inputs)
        # The brackets of `op["Name"]` are for calls that a schema does not allow: they do not
        # check.
        fault = fault_of(node.domain, node.op_type, count, names, self.versions)
        if is_plain(node.op_type) and not node.op_type.startswith("_") and not fault:
            return f"{opset}.{node.op_type}"
        return f"{opset}[{quoted(node.op_type)}]"

    def keywords(self, node: ir.Node, branches: Mapping[int, str]) -> list[Expression]:
        """Return the keyword arguments of a node: its attributes that are not the default.

        Args:
            node: The node.
            branches: Names of the functions that its graphs are, by the graph's identity.
        """
        callee = self.functions.get(node.op_identifier())
        defaults = self._defaults(node, callee)
        arguments: list[Expression] = []
        rest: list[tuple[str, Expression]] = []
        for name, attribute in node.attributes.items():
            # The record has the nodes that write a default out.
            if name in defaults and same_attribute(attribute, defaults[name]):
                continue
            keyword = name if callee is None else callee.attributes.get(name, name)
            text = self._value(node, attribute, callee, branches)
            if is_plain(keyword):
                arguments.append(Named(f"{keyword}=", text))
            else:
                rest.append((keyword, text))
        if len(node.outputs) != self._output_count(node, callee):
            arguments.append(f"_outputs={len(node.outputs)}")
        if rest:
            arguments.append(Bracket("**", keyed(rest).items, "{}"))
        return arguments

    def _defaults(self, node: ir.Node, callee: Callee | None) -> dict[str, ir.Attr]:
        if callee is not None:
            items = callee.function.attributes.items()
            return {name: item for name, item in items if item.value is not None}
        schema = schema_of(node.domain, node.op_type, self.versions)
        declared = {} if schema is None else schema.attributes
        defaults = {name: default_of(item) for name, item in declared.items()}
        return {name: item for name, item in defaults.items() if item is not None}

    def _output_count(self, node: ir.Node, callee: Callee | None) -> int:
        if callee is not None:
            return len(callee.function.outputs)
        return default_outputs(node.domain, node.op_type, self.versions)

    # ---------------------------------------------------------------- attributes
    def _value(
        self,
        node: ir.Node,
        attribute: ir.Attr,
        callee: Callee | None,
        branches: Mapping[int, str],
    ) -> Expression:
        if callee is None:
            kinds = declared_types(node.domain, node.op_type, self.versions)
        else:
            kinds = {n: item.type for n, item in self._defaults(node, callee).items()}
        declared = kinds.get(attribute.name)
        if attribute.is_ref():
            name = self.parameters[attribute.ref_attr_name or ""]
            implied = declared or self.kinds.get(attribute.ref_attr_name or "", Kind.UNDEFINED)
            return name if implied == attribute.type else _typed(attribute.type, name)
        if attribute.type == Kind.GRAPH:
            return branches[id(attribute.value)]
        if attribute.type == Kind.GRAPHS:
            return listed([branches[id(graph)] for graph in attribute.value])
        text = self._plain(node, attribute)
        if declared in (None, Kind.UNDEFINED):
            # An empty list shows no type.
            is_clear = attribute.type not in (Kind.INTS, Kind.FLOATS, Kind.STRINGS)
            return text if is_clear or attribute.value else _typed(attribute.type, text)
        return text if declared == attribute.type else _typed(attribute.type, text)

    def _plain(self, node: ir.Node, attribute: ir.Attr) -> Expression:
        value = attribute.value
        if attribute.type == Kind.TENSOR:
            return self._tensor(node, attribute)
        if attribute.type == Kind.TYPE_PROTO:
            text = annotation(value.type, value.shape)
            if text is not None:
                return text
        single = _SINGLE.get(attribute.type)
        if single is None:
            raise SaveError(
                f"{node.op_type} {node.name}: an attribute of type {attribute.type.name} cannot "
                "be written as Python"
            )
        if isinstance(value, tuple | list):
            return listed([_scalar(item, single) for item in value])
        if single == Kind.INT and attribute.name in _DTYPES and value in set(ir.DataType):
            name = type_name(ir.DataType(value))
            return f"{name}.dtype" if name else str(value)
        return _scalar(value, single)

    def _tensor(self, node: ir.Node, attribute: ir.Attr) -> Expression:
        tensor = attribute.as_tensor()
        text = literal(tensor)
        if text is None:
            return self.weight(self.constants.attribute_weight(node, attribute))
        # A bare literal in an attribute is a number or a list, not a tensor.
        is_written = isinstance(text, Bracket) and text.head == "tensor"
        return text if is_written else call("tensor", [text, tensor.dtype.name])


_SINGLE = {
    Kind.INT: Kind.INT, Kind.INTS: Kind.INT, Kind.FLOAT: Kind.FLOAT, Kind.FLOATS: Kind.FLOAT,
    Kind.STRING: Kind.STRING, Kind.STRINGS: Kind.STRING,
}  # fmt: skip


def _scalar(value: object, kind: Kind) -> str:
    if kind == Kind.FLOAT:
        assert isinstance(value, float | int)
        return float32_text(float(value))
    return quoted(str(value)) if kind == Kind.STRING else str(value)


def _typed(kind: Kind, text: Expression) -> Expression:
    return call("typed", [quoted(kind.name), text])


def default_text(attribute: ir.Attr) -> Expression | None:
    """Return a function attribute's default as Python; None if it has another type than text says.

    ``1.0`` is a FLOAT, ``[1]`` are INTS; an empty list is written with its type.
    """
    single = _SINGLE.get(attribute.type)
    if single is None:
        return None
    if not isinstance(attribute.value, tuple | list):
        return _scalar(attribute.value, single)
    items = listed([_scalar(item, single) for item in attribute.value])
    return items if items.items else _typed(attribute.type, items)
