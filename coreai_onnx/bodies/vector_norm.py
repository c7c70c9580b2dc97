"""The body of ``linalg_vector_norm``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.norms import widened
from coreai_onnx.bodies.trace import Example
from coreai_onnx.bodies.writers import Examples, writes
from coreai_onnx.composites.declaration import Composite
from coreai_onnx.lower.build.scope import AttributeRef
from coreai_onnx.lower.build.values import Value, dtype_of


def _words(composite: Composite, examples: Examples, attributes: Mapping[str, Any]) -> list[str]:
    del composite, examples
    order = float(attributes["ord"])
    words = {2.0: [], 1.0: ["absolute"], 0.0: ["count"]}
    words |= {math.inf: ["greatest"], -math.inf: ["least"]}
    return list(words.get(order, ["power"]))


@writes("linalg_vector_norm", words=_words)
def write(
    b: BodyBuilder, examples: Sequence[Example | None], attributes: Mapping[str, Any]
) -> Value:
    """One reduction for the orders that have a reduction op; powers and a root for the others."""
    del examples
    x, order = widened(b, b.inputs[0]), float(attributes["ord"])
    op = b.op
    if order in (1, 2):
        result = _reduced(b, f"ReduceL{int(order)}", x)
    elif order == 0:
        result = _reduced(b, "ReduceSum", op.cast(op.Not(op.Equal(x, 0.0)), dtype_of(x)))
    elif math.isinf(order):
        result = _extreme(b, op.Abs(x), largest=order > 0)
    else:
        power = widened(b, b.scope.attribute(AttributeRef("ord", "float")))
        total = _reduced(b, "ReduceSum", op.Pow(op.Abs(x), power))
        result = op.Pow(total, op.Reciprocal(power))
    return op.cast(result, b.dtype)


def _extreme(b: BodyBuilder, x: Value, *, largest: bool) -> Value:
    """Return the greatest or least element, NaN if there is one.

    onnxruntime may ignore a NaN, depending on its position in the row.
    """
    found = _reduced(b, "ReduceMax" if largest else "ReduceMin", x)
    unclear = _reduced(b, "ReduceMax", b.op.cast(b.op.IsNaN(x), torch.float32))
    return b.op.Where(b.op.Greater(unclear, 0.0), float("nan"), found)


def _reduced(b: BodyBuilder, op_type: str, x: Value) -> Value:
    axes, kept = AttributeRef("axes", "ints"), AttributeRef("keep_dim", "int")
    return b.op.node(op_type, x, axes, keepdims=kept)
