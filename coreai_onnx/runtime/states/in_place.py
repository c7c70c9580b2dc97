"""States that onnxruntime may update in place, and the positions that a call writes to.

onnxruntime does not know when the memory of an input and of an output is the same. A node that
reads the old value after the update would read the new one.

The positions follow from the inputs of a call by a few operations on integers. These are copied, so
that the positions are known before the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.model.inventory import STANDARD_DOMAIN, attribute_graphs
from coreai_onnx.model.metadata import RELATION_LIMIT, read_states
from coreai_onnx.model.standard.op_schemas import RANDOM_OPS
from coreai_onnx.runtime.states.undo import (
    Recipe,
    Write,
    WrittenElements,
    WrittenRows,
    is_computed_from_dims,
)

_SCATTERS = {("", "ScatterElements"), ("", "ScatterND")}
_ROWS = {("", "TensorScatter"), (STANDARD_DOMAIN, "kv_cache_update")}
"""Operators that write some elements into their first input, and copy it first only if the output
has other memory: elements, or whole rows along an axis."""
_NO_VALUES = {("", "Shape"), ("", "Size")}
"""Operators that read no elements of their input."""


@dataclass(frozen=True)
class Update:
    """How a state is updated.

    Attributes:
        node: The operator, in the graph or in a function.
        calls: The calls of functions that lead to it, the outermost first.
    """

    node: ir.Node
    calls: tuple[ir.Node, ...] = ()

    @property
    def writes_rows(self) -> bool:
        """Whether it writes whole rows along an axis, from a position on."""
        return (self.node.domain, self.node.op_type) in _ROWS

    @property
    def index(self) -> ir.Value | None:
        """The positions of the elements, or the first one of the rows; None is 0."""
        position = 2 if self.writes_rows else 1
        return self.node.inputs[position] if position < len(self.node.inputs) else None

    @property
    def elements(self) -> ir.Value | None:
        """The new elements."""
        return self.node.inputs[1 if self.writes_rows else 2]


def updated_in_place(model: ir.Model) -> dict[str, Update]:
    """Return the states whose update may be done in place.

    The update of such a state is one of a few operators that write some elements into it, and no
    other node reads the old value, also inside of functions. Then every node sees the new value.

    Returns:
        The update of each such state, by the state's name.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    updates: dict[str, Update] = {}
    for state in read_states(model.metadata_props):
        old, new = inputs.get(state.input), outputs.get(state.output)
        if old is None or new is None:
            continue
        update = _update_of(old, new, model.functions)
        if update is not None:
            updates[state.input] = update
    return updates


def _update_of(
    old: ir.Value, new: ir.Value, functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> Update | None:
    """Return the only node that reads an old value, if it is an update that makes the new one."""
    # The caller would get the new value under the name of the old one.
    if old.is_graph_output():
        return None
    reads = [use for use in old.uses() if (use.node.domain, use.node.op_type) not in _NO_VALUES]
    if len(reads) != 1:
        return None
    node, position = reads[0]
    result = _original(new)
    if result.producer() is not node or node.graph is not new.graph:
        return None
    if (node.domain, node.op_type) in _SCATTERS | _ROWS:
        # As indices or new elements, the old value is read while it is overwritten.
        return Update(node) if position == 0 and result.index() == 0 else None
    function, index = functions.get(node.op_identifier()), result.index()
    if function is None or index is None or position >= len(function.inputs):
        return None
    inner = _update_of(function.inputs[position], function.outputs[index], functions)
    return None if inner is None else replace(inner, calls=(node, *inner.calls))


def _original(value: ir.Value) -> ir.Value:
    node = value.producer()
    while node is not None and (node.domain, node.op_type) == ("", "Identity"):
        source = node.inputs[0]
        if source is None:
            break
        value, node = source, source.producer()
    return value


_MOST_NODES = 100
"""Positions that follow from more nodes per update may depend on the network itself."""
_MOST_BYTES = 1 << 16
"""The same for constants."""

Calls = tuple[ir.Node, ...]


class UnknownPositionsError(Exception):
    """The positions of an update depend on more than a few operations."""


class PositionsModel:
    """Collects the nodes that compute the positions of updates.

    Attributes:
        shapes: The inputs that are (parts of) shapes of values in the original model, by name.
        outputs: The outputs so far, by name.
    """

    def __init__(self, model: ir.Model) -> None:
        """Start without nodes."""
        self.shapes: dict[str, tuple[int | str | None, ...]] = {}
        self.outputs: dict[str, ir.Value] = {}
        self._model = model
        self._nodes: list[ir.Node] = []
        self._inputs: dict[str, ir.Value] = {}
        self._constants: dict[str, ir.Value] = {}
        self._copies: dict[tuple[ir.Value, Calls], ir.Value] = {}
        self._left = 0

    def add(self, update: Update) -> str:
        """Return the output that has the positions of an update; "" if they are all from 0.

        Raises:
            UnknownPositionsError: If they are not known before the call.
        """
        if update.index is None:
            return ""
        self._left = _MOST_NODES
        copy = self._copied(update.index, update.calls)
        name = next((name for name, value in self.outputs.items() if value is copy), None)
        if name is None:
            name = f"positions_{len(self.outputs)}"
            self.outputs[name] = copy
        return name

    def shape(self, update: Update) -> tuple[int | str | None, ...]:
        """Return the dims of the new elements of an update.

        Raises:
            UnknownPositionsError: If their number is not known.
        """
        assert update.elements is not None
        value, calls = self._argument(update.elements, update.calls)
        return _dims(value, calls)

    def build(self) -> ir.Model:
        """Return the model; its inputs are those of the original one, and `shapes`."""
        nodes = list(self._nodes)
        results = []
        for name, value in self.outputs.items():
            node = ir.node("Identity", [value], name=name)
            node.outputs[0].name = name
            nodes.append(node)
            results.append(node.outputs[0])
        graph = ir.Graph(
            list(self._inputs.values()),
            results,
            nodes=nodes,
            initializers=list(self._constants.values()),
            opset_imports={"": self._model.opset_imports.get("", 1)},
            name="positions",
        )
        model = ir.Model(graph, ir_version=self._model.ir_version)
        # `_copied` leaves copies of nodes behind when a later input raises UnknownPositionsError,
        # and each call would have to feed their inputs.
        RemoveUnusedNodesPass()(model)
        for value in [value for value in graph.inputs if not value.uses()]:
            graph.inputs.remove(value)
        return model

    def _copied(self, value: ir.Value, calls: Calls) -> ir.Value:
        value, calls = self._argument(value, calls)
        if (value, calls) not in self._copies:
            node = value.producer()
            if node is None:
                self._copies[value, calls] = self._leaf(value)
            elif node.op_type == "Shape" and (shape := self._shape_of(node, calls)) is not None:
                self._copies[value, calls] = shape
            else:
                self._copy_node(node, calls)
        return self._copies[value, calls]

    def _argument(self, value: ir.Value, calls: Calls) -> tuple[ir.Value, Calls]:
        """Follow the input of a function to what it is called with."""
        while calls and value.producer() is None:
            function = self._model.functions[calls[-1].op_identifier()]
            pairs = zip(function.inputs, calls[-1].inputs, strict=False)
            outer = next((argument for parameter, argument in pairs if parameter is value), None)
            # All copies get the opset of the model; in that of the function an operator may differ.
            if outer is None or function.opset_imports.get("") != self._model.opset_imports.get(""):
                raise UnknownPositionsError
            value, calls = outer, calls[:-1]
        return value, calls

    def _leaf(self, value: ir.Value) -> ir.Value:
        name = value.name or ""
        if value.is_graph_input():
            # In a call without it, an input with a default may have other sizes than its dims.
            has_sizes = value.const_value is None and value.shape is not None
            shape = ir.Shape(value.shape or ()) if has_sizes else None
            return self._inputs.setdefault(name, ir.Value(name=name, type=value.type, shape=shape))
        constant = value.const_value
        if constant is None or constant.nbytes > _MOST_BYTES:
            raise UnknownPositionsError
        copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=constant)
        return self._constants.setdefault(name, copy)

    def _shape_of(self, node: ir.Node, calls: Calls) -> ir.Value | None:
        """Return an input for the shape of a value that the network computes."""
        if node.inputs[0] is None:
            raise UnknownPositionsError
        value, calls = self._argument(node.inputs[0], calls)
        if value.is_graph_input():
            return None
        bounds = [node.attributes.get(name) for name in ("start", "end")]
        if any(bound is not None and bound.is_ref() for bound in bounds):
            raise UnknownPositionsError
        start, end = (None if bound is None else bound.as_int() for bound in bounds)
        name = f"shape_{len(self.shapes)}"
        self.shapes[name] = _dims(value, calls)[start:end]
        self._inputs[name] = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64))
        return self._inputs[name]

    def _copy_node(self, node: ir.Node, calls: Calls) -> None:
        self._left -= 1
        attributes = list(node.attributes.values())
        if (
            # Another domain needs functions or libraries that this model does not have, and random
            # numbers would be drawn again: the call has others.
            not self._left
            or node.domain
            or node.op_type in RANDOM_OPS
            or any(x.is_ref() or any(attribute_graphs(x)) for x in attributes)
        ):
            raise UnknownPositionsError
        inputs = [None if x is None else self._copied(x, calls) for x in node.inputs]
        number = len(self._nodes)
        copy = ir.Node(
            "", node.op_type, inputs, attributes, num_outputs=len(node.outputs), name=node.name
        )
        self._nodes.append(copy)
        for i, (old, new) in enumerate(zip(node.outputs, copy.outputs, strict=True)):
            new.name = f"value_{number}_{i}"
            self._copies[old, calls] = new


def _dims(value: ir.Value, calls: Calls) -> tuple[int | str | None, ...]:
    """Return the dims of a value; those of values in functions are not known."""
    if calls or value.shape is None:
        raise UnknownPositionsError
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def undo_recipe(model: ir.Model) -> Recipe:
    """Return how to compute the positions of the updates of a model."""
    positions = PositionsModel(model)
    writes: dict[str, Write] = {}
    for name, update in updated_in_place(model).items():
        try:
            writes[name] = _write(update, positions)
        except UnknownPositionsError:
            continue
    return recipe_of(positions.build(), writes, positions.shapes)


def recipe_of(
    positions: ir.Model,
    writes: Mapping[str, Write] = MappingProxyType({}),
    shapes: Mapping[str, tuple[int | str | None, ...]] = MappingProxyType({}),
) -> Recipe:
    """Return the recipe of a model that computes positions."""
    outputs = positions.graph.outputs
    texts = _expressions(positions.graph)
    expressions = [texts.get(value, "") for value in outputs]
    from_dims = is_computed_from_dims(expressions)
    model = b"" if from_dims else to_proto(positions).SerializeToString()
    return Recipe(writes, shapes, [str(value.name) for value in outputs], expressions, model)


def _write(update: Update, positions: PositionsModel) -> Write:
    """Describe what an update writes, and add its positions to the model of them.

    Raises:
        UnknownPositionsError: If they are not known before the call.
    """
    attribute = update.node.attributes.get("axis")
    if attribute is not None and attribute.is_ref():
        raise UnknownPositionsError
    axis = None if attribute is None else attribute.as_int()
    if not update.writes_rows:
        scatters_along = update.node.op_type == "ScatterElements"
        return WrittenElements(positions.add(update), (axis or 0) if scatters_along else None)
    dims = positions.shape(update)
    # Tokens are axis 2 of kv_cache_update; -2 is the default of TensorScatter.
    axis = 2 if update.node.domain else -2 if axis is None else axis
    if not -len(dims) < axis < len(dims) or axis % len(dims) == 0:  # axis 0 is the batch
        raise UnknownPositionsError
    return WrittenRows(positions.add(update), axis % len(dims), dims[axis])


_ARITHMETIC = {"Add": "({}) + ({})", "Sub": "({}) - ({})", "Mul": "({}) * ({})", "Neg": "-({})"}
_RESHAPES = {"Identity", "Squeeze", "Unsqueeze"}


def _expressions(graph: ir.Graph) -> dict[ir.Value | None, str]:
    """Return the values that are one integer as expressions of dims."""
    constants = ((x, x.const_value) for x in graph.initializers.values())
    texts: dict[ir.Value | None, str] = {
        x: str(tensor.numpy().item()) for x, tensor in constants if tensor and tensor.size == 1
    }
    for node in graph:
        text = ""
        if node.op_type == "Shape" and (value := node.inputs[0]) is not None:
            bounds = (node.attributes.get(name) for name in ("start", "end"))
            part = slice(*(None if bound is None else bound.as_int() for bound in bounds))
            dims = tuple(value.shape or ())[part]
            if len(dims) == 1 and value.is_graph_input():
                text = str(dims[0])
        elif node.op_type in _RESHAPES:
            text = texts.get(node.inputs[0], "")
        elif node.op_type in _ARITHMETIC and all(value in texts for value in node.inputs):
            text = _ARITHMETIC[node.op_type].format(*(texts[value] for value in node.inputs))
        # Without a limit, a chain of sums of a value and itself would double it in each node.
        if text and len(text) <= RELATION_LIMIT:
            texts[node.outputs[0]] = text
    return texts
