"""Attention to the part of a cache that its mask admits, in bodies."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.attention_bodies import NAME
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import model_bodies
from coreai_onnx.passes.engine.edit import Edit, set_input
from coreai_onnx.passes.engine.match import (
    composite,
    dtype_of,
    input_of,
    is_standard,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_KEY, _VALUE, _MASK = 1, 2, 3


def admitted_keys(graph: gs.Graph, why: Why) -> int:
    """Attention to a cache of fixed capacity → to the keys before the last that its mask admits.

    f(q, k, v, m) = Attention(q, k, v, m), every call's k and v are kv_cache_update(…)
    becomes     f(q, k, v, m) = Attention(q, k[:, :, :end], v[:, :, :end], m[…, :end])

    Applies to the bodies of scaled_dot_product_attention: our kernel skips the other keys itself.
    onnxruntime's Attention multiplies all of them, and a prompt of 128 tokens in a cache of 640
    takes five times as long. Only for one token in a cache that is nearly full do the copies take
    longer than the keys that they leave out.
    """
    bodies = model_bodies(graph)
    if not isinstance(graph, gs.Function) or bodies is None or graph.domain != STANDARD_DOMAIN:
        return 0
    if graph.name.partition(".")[0] != NAME or len(graph.inputs) <= _MASK:
        return 0
    # An earlier round has rewritten the body.
    if any(is_standard(node, "Slice") for node in graph.inputs[_KEY].outputs):
        return 0
    calls = bodies.calls(graph)
    if not any(_reads_cache(call) for call in calls):
        return 0
    if not all(_reads_cache(call) and _has_mask_of_keys(call) for call in calls):
        why("keys of a call are not those of a cache with a mask of booleans", calls[0])
        return 0
    _write(graph)
    return 1


def _reads_cache(call: gs.Node) -> bool:
    makers = [maker(call.inputs[index]) for index in (_KEY, _VALUE)]
    return all(composite(made, "kv_cache_update") is not None for made in makers)


def _has_mask_of_keys(call: gs.Node) -> bool:
    """Whether a mask of booleans has a column for each key: one column would be that of all."""
    mask, keys = input_of(call, _MASK), shape_of(call.inputs[_KEY])
    columns = None if mask is None else shape_of(mask)
    if mask is None or not columns or keys is None or dtype_of(mask) != np.bool_:
        return False
    return len(columns) == len(keys) == 4 and columns[-1] == keys[2] is not None


def _write(graph: gs.Function) -> None:
    edit, first = Edit(graph), graph.nodes[0]
    mask = graph.inputs[_MASK]
    read = [(tensor, list(tensor.outputs)) for tensor in graph.inputs[_KEY : _MASK + 1]]

    def constant(value: int | list[int]) -> gs.Constant:
        return edit.constant("admitted", np.array(value, np.int64))

    # ReduceMax accepts booleans only from opset 20 on.
    numbers = edit.add("Cast", first, [mask], to=1)
    some = edit.add("ReduceMax", first, [numbers, constant([0, 1, 2])], keepdims=0)
    size = edit.add("Shape", first, [some])
    behind = edit.add("Add", first, [edit.add("Squeeze", first, [size]), constant(1)])
    ends = edit.add("Range", first, [constant(1), behind, constant(1)])
    ends = edit.add("Mul", first, [edit.add("Cast", first, [some], to=7), ends])
    # A softmax has at least one column.
    end = edit.add("ReduceMax", first, [ends, constant([0])], keepdims=1)
    end = edit.add("Max", first, [end, constant([1])])
    for (tensor, readers), axis in zip(read, (2, 2, 3), strict=True):
        part = edit.add("Slice", first, [tensor, constant([0]), end, constant([axis])])
        for node in readers:
            set_input(node, next(i for i, t in enumerate(node.inputs) if t is tensor), part)
    edit.finish()
