"""Replaces quantization to int8 by quantization to uint8."""

from __future__ import annotations

from typing import Any

import numpy as np

from coreai_onnx.passes.analysis.linear_quantization import unsigned
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    attribute_of,
    dtype_of,
    input_of,
    is_standard,
    scalar_of,
    static_shape_of,
)
from coreai_onnx.passes.engine.why import Why

_INT8 = np.dtype(np.int8)


def unsigned_activations(graph: gs.Graph, why: Why) -> int:
    """Q/DQ with an int8 zero point → Q/DQ with a uint8 zero point that is 128 larger.

    Q(x, s, -5:int8) ─DQ(s, -5)→ y     becomes     Q(x, s, 123:uint8) ─DQ(s, 123)→ y

    The dequantized values are equal. On x86, onnxruntime's products of int8 by int8 are ten times
    slower than those of uint8 by int8, and some of its operators exist only for uint8.
    """
    edit, count, shifted = Edit(graph), 0, {}
    for node in graph.nodes:
        zero = input_of(node, 2) if is_standard(node, "QuantizeLinear") else None
        if zero is None or dtype_of(zero) != _INT8 or not _is_one_number(node.inputs[1]):
            continue
        steps = node.outputs[0]
        if edit.is_output(steps) or not all(_restores(r, node, edit) for r in steps.outputs):
            why("something else than DequantizeLinear reads the int8 values", node)
            continue
        if id(zero) not in shifted:
            shifted[id(zero)] = unsigned(edit, node, zero)
        for user in [node, *steps.outputs]:
            inputs = [user.inputs[0], user.inputs[1], shifted[id(zero)]]
            edit.become(user, user.op, inputs, **_without_dtype(user))
        steps.dtype = np.uint8
        count += 1
    edit.finish()
    return count


def _is_one_number(scale: gs.Tensor) -> bool:
    return static_shape_of(scale) in ((), (1,))


def _restores(reader: gs.Node, quantize: gs.Node, edit: Edit) -> bool:
    """Whether a reader dequantizes with the scale and the zero point of the quantization."""
    return (
        is_standard(reader, "DequantizeLinear")
        and edit.holds(reader)
        and len(reader.inputs) == 3
        and all(_same(reader.inputs[i], quantize.inputs[i]) for i in (1, 2))
    )


def _same(a: gs.Tensor, b: gs.Tensor) -> bool:
    value = scalar_of(a)
    return a is b or (value is not None and value == scalar_of(b) and dtype_of(a) == dtype_of(b))


def _without_dtype(node: gs.Node) -> dict[str, Any]:
    """Return the attributes without the output dtype, which is that of the zero point."""
    names = [name for name in node.attrs if name != "output_dtype"]
    return {name: attribute_of(node, name, None) for name in names}
