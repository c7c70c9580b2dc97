"""States that onnxruntime may update in place: in the memory of their old value.

onnxruntime does not know when the memory of an input and of an output is the same. A node that
reads the old value after the update would read the new one.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.metadata import read_states

_UPDATES = {
    ("", "ScatterElements"),
    ("", "ScatterND"),
    ("", "TensorScatter"),
    (STANDARD_DOMAIN, "kv_cache_update"),
}
"""Operators that write some elements into their first input, and copy it first only if the output
has other memory."""
_NO_VALUES = {("", "Shape"), ("", "Size")}
"""Operators that read no elements of their input."""


def updated_in_place(model: ir.Model) -> dict[str, frozenset[str]]:
    """Return the states whose update may be done in place.

    The update of such a state is one of a few operators that write some elements into it, and no
    other node reads the old value, also inside of functions. Then every node sees the new value.

    Returns:
        The name of each such state, with the names of the nodes that run before its update. If one
        of them fails, the state is unchanged.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    found: dict[str, frozenset[str]] = {}
    for state in read_states(model.metadata_props):
        old, new = inputs.get(state.input), outputs.get(state.output)
        if old is None or new is None:
            continue
        update = _update_of(old, new, model.functions)
        if update is not None:
            found[state.input] = _before(update)
    return found


def _update_of(
    old: ir.Value, new: ir.Value, functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> ir.Node | None:
    """Return the only node that reads an old value, if it is an update that makes the new one."""
    if old.is_graph_output():
        return None
    reads = [use for use in old.uses() if (use.node.domain, use.node.op_type) not in _NO_VALUES]
    if len(reads) != 1:
        return None
    node, position = reads[0]
    result = _original(new)
    if result.producer() is not node or node.graph is not new.graph:
        return None
    function = functions.get(node.op_identifier())
    if function is not None:
        index = result.index()
        if index is None or position >= len(function.inputs):
            return None
        inner = _update_of(function.inputs[position], function.outputs[index], functions)
        return node if inner is not None else None
    is_update = (node.domain, node.op_type) in _UPDATES and position == 0
    return node if is_update and result.index() == 0 else None


def _original(value: ir.Value) -> ir.Value:
    """Return the value that an Identity copies."""
    node = value.producer()
    while node is not None and (node.domain, node.op_type) == ("", "Identity"):
        source = node.inputs[0]
        if source is None:
            break
        value, node = source, source.producer()
    return value


def _before(node: ir.Node) -> frozenset[str]:
    """Return the names of the nodes that a node depends on."""
    names: set[str] = set()
    waiting, seen = [node], {node}
    while waiting:
        for value in waiting.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in seen:
                seen.add(producer)
                names.add(producer.name or "")
                waiting.append(producer)
    return frozenset(names - {""})
