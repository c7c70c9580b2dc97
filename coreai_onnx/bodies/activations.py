"""Bodies of activations, also with a gate or a bias, and of the softmax and its logarithm."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, always_cast
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.aten.pointwise import activation
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value

_GELU_SINCE = 20
"""The first opset with Gelu."""


def _approximation_words(variant: Variant) -> list[str]:
    return ["tanh"] if variant.attributes["approximate"] == "tanh" else []


@writes("swiglu")
def swiglu(b: BodyBuilder) -> Value:
    """``gate * sigmoid(gate)``, which onnxruntime fuses, times ``up``."""
    gate, up = _wide_inputs(b)
    # CastLike, not Cast, here and in the next two bodies: their text is equal for all dtypes.
    return b.op.CastLike(b.op.Mul(_silu(b.op, gate), up), b.inputs[0])


@writes("geglu", words=_approximation_words)
def geglu(b: BodyBuilder) -> Value:
    """``gelu(gate)`` times ``up``."""
    gate, up = _wide_inputs(b)
    activate = _gelu_tanh if b.attributes["approximate"] == "tanh" else _gelu
    return b.op.CastLike(b.op.Mul(activate(b.op, gate), up), b.inputs[0])


def _activation_words(variant: Variant) -> list[str]:
    return [] if variant.attributes["activation"] == "none" else [variant.attributes["activation"]]


@writes("add_bias", words=_activation_words)
def add_bias(b: BodyBuilder) -> Value:
    """``activation(input + bias)``."""
    total = b.op.Add(*_wide_inputs(b))
    if b.attributes["activation"] != "none":
        total = _ACTIVATIONS[b.attributes["activation"]](b.op, total)
    return b.op.CastLike(total, b.inputs[0])


def _silu(op: OpBuilder, x: Value) -> Value:
    return op.Mul(x, op.Sigmoid(x))


def _gelu(op: OpBuilder, x: Value) -> Value:
    """The formula with Erf, which onnxruntime fuses; Gelu does not exist in opset 18."""
    return _scaled_gelu(op, x, op.Erf(op.Div(x, math.sqrt(2))))


def _gelu_tanh(op: OpBuilder, x: Value) -> Value:
    # The approximation of D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units" (2016), in the
    # form that torch computes.
    cube = op.Mul(op.Mul(x, x), x)
    inner = op.Mul(op.Add(x, op.Mul(cube, 0.044715)), math.sqrt(2 / math.pi))
    return _scaled_gelu(op, x, op.Tanh(inner))


def _scaled_gelu(op: OpBuilder, x: Value, bent: Value) -> Value:
    return op.Mul(op.Mul(x, op.Add(bent, 1.0)), 0.5)


_ACTIVATIONS: dict[str, Callable[[OpBuilder, Value], Value]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "sigmoid": lambda op, x: op.Sigmoid(x),
    "tanh": lambda op, x: op.Tanh(x),
    "exp": lambda op, x: op.Exp(x),
}


def _wide_inputs(b: BodyBuilder) -> list[Value]:
    """Return both inputs in the dtype of the computation; runtimes drop redundant casts."""
    return [always_cast(b.op, x, b.wide) for x in b.inputs[:2]]


@writes("gelu", words=_approximation_words)
def gelu(b: BodyBuilder) -> Value:
    """ONNX's Gelu from opset 20 on, which onnxruntime supports in float32."""
    x, approximate = b.widened(b.inputs[0]), str(b.attributes["approximate"])
    if b.opset < _GELU_SINCE or b.dtype == torch.float64:
        return b.op.cast(activation.gelu(b.op, x, approximate=approximate), b.dtype)
    named = None if approximate == "none" else approximate
    return b.op.cast(b.op.Gelu(x, approximate=named), b.dtype)


@writes("silu")
def silu(b: BodyBuilder) -> Value:
    """x * sigmoid(x), which onnxruntime fuses."""
    return b.op.cast(activation.silu(b.op, b.inputs[0]), b.dtype)


@writes("hard_sigmoid")
def hard_sigmoid(b: BodyBuilder) -> Value:
    """HardSigmoid with a slope of 1/6; its formula in float64."""
    return b.op.cast(activation.hardsigmoid(b.op, b.widened(b.inputs[0])), b.dtype)


@writes("hard_swish")
def hard_swish(b: BodyBuilder) -> Value:
    """x * hard_sigmoid(x), to which onnxruntime expands ONNX's HardSwish."""
    return b.op.cast(activation.hardswish(b.op, b.inputs[0]), b.dtype)


@writes("softmax")
def softmax(b: BodyBuilder) -> Value:
    """Softmax over the last axis."""
    return b.op.cast(b.op.Softmax(b.widened(b.inputs[0]), axis=-1), b.dtype)


@writes("log_softmax")
def log_softmax(b: BodyBuilder) -> Value:
    """LogSoftmax along the axis in the attribute of the call."""
    wide = b.widened(b.inputs[0])
    return b.op.cast(b.op.LogSoftmax(wide, axis=b.ref("axis")), b.dtype)
