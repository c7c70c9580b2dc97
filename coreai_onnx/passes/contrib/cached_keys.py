"""Keys or values of past and new tokens that one attention reads."""

from __future__ import annotations

from dataclasses import dataclass

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import attribute_of, composite, is_standard, maker, shape_of


@dataclass(frozen=True)
class Joined:
    """Keys or values of past tokens and of new ones.

    Attributes:
        past: Those of the past tokens.
        new: Those of the new ones.
        whole: All of them, or the cache with the new ones written to it.
        concat: The node that makes it.
        begin: The place of the first new one in a cache of a capacity; None for a Concat.
    """

    past: gs.Tensor
    new: gs.Tensor
    whole: gs.Variable
    concat: gs.Node
    begin: gs.Tensor | None = None


def joined(tensor: gs.Tensor, reader: gs.Node, edit: Edit) -> Joined | None:
    """Return the parts of keys or values if nothing reads them but this attention or the caller."""
    node = maker(tensor)
    # An attention before this one may have taken the same cache.
    if node is None or not edit.holds(node) or edit.is_removed(node):
        return None
    if any(other is not reader for other in tensor.outputs):
        return None
    if is_standard(node, "Concat"):
        if len(node.inputs) != 2 or attribute_of(node, "axis", 0) not in (2, -2):
            return None
        past, new = node.inputs
        parts = Joined(past, new, node.outputs[0], node)
    elif composite(node, "kv_cache_update") is not None:
        past, new, begin = node.inputs
        parts = Joined(past, new, node.outputs[0], node, begin)
    else:
        return None
    if any(len(shape_of(one) or ()) != 4 for one in (parts.past, parts.new, tensor)):
        return None
    return parts
