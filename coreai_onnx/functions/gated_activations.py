"""Bodies of the gated activations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.composite_ops.declaration import Composite
from coreai_onnx.functions.body import BodyBuilder
from coreai_onnx.functions.writers import Examples, writes
from coreai_onnx.lower.values import Value, ir_dtype


def approximation_words(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    """Return the variant word of the tanh approximation, if the call uses it."""
    del composite, examples
    return ["tanh"] if attributes["approximate"] == "tanh" else []


@writes("swiglu")
def swiglu(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """``gate * sigmoid(gate)``, which onnxruntime fuses, times ``up``."""
    del examples, attributes
    gate, up = _wide_inputs(b)
    return b.op.CastLike(b.op.Mul(b.op.Mul(gate, b.op.Sigmoid(gate)), up), b.inputs[0])


@writes("geglu", words=approximation_words)
def geglu(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """The formula with Erf, which onnxruntime fuses; Gelu does not exist in opset 18."""
    del examples
    op, (gate, up) = b.op, _wide_inputs(b)
    if attributes["approximate"] == "tanh":
        cube = op.Mul(op.Mul(gate, gate), gate)
        inner = op.Mul(op.Add(gate, op.Mul(cube, 0.044715)), math.sqrt(2 / math.pi))
        bent = op.Tanh(inner)
    else:
        bent = op.Erf(op.Div(gate, math.sqrt(2)))
    activated = op.Mul(op.Mul(gate, op.Add(bent, 1.0)), 0.5)
    return op.CastLike(op.Mul(activated, up), b.inputs[0])


def _wide_inputs(b: BodyBuilder) -> list[Value]:
    """Return gate and up in the dtype of the computation; runtimes drop redundant casts."""
    wide = torch.float64 if b.dtype == torch.float64 else torch.float32
    return [b.op.Cast(x, to=int(ir_dtype(wide))) for x in b.inputs[:2]]
