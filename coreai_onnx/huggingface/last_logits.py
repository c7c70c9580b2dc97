"""The number of logits that a decoder computes, as an optional input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.huggingface.decoders import KEPT

COUNT = "num_logits_to_keep"
"""The optional input, int64 ``[]``, by the name that transformers.js has for it."""
_TO_THE_END = np.iinfo(np.int64).max


def count_logits(model: ir.Model) -> None:
    """Replace the places of the logits to compute by the number of the last ones.

    The input ``logits_to_keep`` becomes the optional input ``num_logits_to_keep``. Its default, 0,
    is the number of all tokens:

        Slice(Range(0, length of input_ids, 1), -num_logits_to_keep, the largest number)

    Args:
        model: The decoder; changed in place.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.inputs}
    places, ids = inputs[KEPT], inputs["input_ids"]
    count = ir.val(COUNT, const_value=ir.tensor(np.array(0, np.int64), name=COUNT))
    graph.inputs[list(graph.inputs).index(places)] = count
    graph.initializers[COUNT] = count
    nodes: list[ir.Node] = []

    def add(op_type: str, *given: ir.Value | int | list[int], **attributes: int) -> ir.Value:
        values = [_constant(one, nodes) if not isinstance(one, ir.Value) else one for one in given]
        node = ir.node(op_type, values, attributes)
        node.outputs[0].name = node.name = f"{KEPT}.{op_type}"
        nodes.append(node)
        return node.outputs[0]

    length = add("Squeeze", add("Shape", ids, start=1, end=2), [0])
    first = add("Unsqueeze", add("Neg", count), [0])
    last = add("Slice", add("Range", 0, length, 1), first, [_TO_THE_END])
    last.type, last.shape = places.type, places.shape
    ir.convenience.replace_all_uses_with(places, last)
    graph.insert_before(next(iter(graph)), nodes)


def _constant(number: int | list[int], nodes: list[ir.Node]) -> ir.Value:
    tensor = ir.tensor(np.array(number, np.int64))
    node = ir.node("Constant", [], {"value": tensor})
    node.outputs[0].name = node.name = f"{KEPT}.constant_{len(nodes)}"
    nodes.append(node)
    return node.outputs[0]
