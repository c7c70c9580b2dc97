"""Bodies of the activations with a gate or a bias."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.writers import Examples, writes
from coreai_onnx.composites.declaration import Composite
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Value, ir_dtype


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
    return b.op.CastLike(b.op.Mul(_silu(b.op, gate), up), b.inputs[0])


@writes("geglu", words=approximation_words)
def geglu(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """``gelu(gate)`` times ``up``."""
    del examples
    gate, up = _wide_inputs(b)
    activate = _gelu_tanh if attributes["approximate"] == "tanh" else _gelu
    return b.op.CastLike(b.op.Mul(activate(b.op, gate), up), b.inputs[0])


def _activation_words(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    """Return the variant word of the activation, if there is one."""
    del composite, examples
    return [] if attributes["activation"] == "none" else [attributes["activation"]]


@writes("add_bias", words=_activation_words)
def add_bias(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """``activation(input + bias)``."""
    del examples
    total = b.op.Add(*_wide_inputs(b))
    if attributes["activation"] != "none":
        total = _ACTIVATIONS[attributes["activation"]](b.op, total)
    return b.op.CastLike(total, b.inputs[0])


def _silu(op: OpBuilder, x: Value) -> Value:
    return op.Mul(x, op.Sigmoid(x))


def _gelu(op: OpBuilder, x: Value) -> Value:
    """The formula with Erf, which onnxruntime fuses; Gelu does not exist in opset 18."""
    return _scaled(op, x, op.Erf(op.Div(x, math.sqrt(2))))


def _gelu_tanh(op: OpBuilder, x: Value) -> Value:
    cube = op.Mul(op.Mul(x, x), x)
    inner = op.Mul(op.Add(x, op.Mul(cube, 0.044715)), math.sqrt(2 / math.pi))
    return _scaled(op, x, op.Tanh(inner))


def _scaled(op: OpBuilder, x: Value, bent: Value) -> Value:
    return op.Mul(op.Mul(x, op.Add(bent, 1.0)), 0.5)


_ACTIVATIONS = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}


def _wide_inputs(b: BodyBuilder) -> list[Value]:
    """Return both inputs in the dtype of the computation; runtimes drop redundant casts."""
    wide = torch.float64 if b.dtype == torch.float64 else torch.float32
    return [b.op.Cast(x, to=int(ir_dtype(wide))) for x in b.inputs[:2]]
