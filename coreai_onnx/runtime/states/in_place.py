"""States that onnxruntime may update in place: in the memory of their old value.

onnxruntime does not know when the memory of an input and of an output is the same. A node that
reads the old value after the update would read the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.metadata import read_states

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
    found: dict[str, Update] = {}
    for state in read_states(model.metadata_props):
        old, new = inputs.get(state.input), outputs.get(state.output)
        if old is None or new is None:
            continue
        update = _update_of(old, new, model.functions)
        if update is not None:
            found[state.input] = update
    return found


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
    """Return the value that an Identity copies."""
    node = value.producer()
    while node is not None and (node.domain, node.op_type) == ("", "Identity"):
        source = node.inputs[0]
        if source is None:
            break
        value, node = source, source.producer()
    return value
