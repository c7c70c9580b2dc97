"""Bodies of activations and of log-softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.gated_activations import approximation_words
from coreai_onnx.bodies.norms import widened
from coreai_onnx.bodies.writers import Examples, writes
from coreai_onnx.lower.aten.pointwise import activation
from coreai_onnx.lower.build.scope import AttributeRef
from coreai_onnx.lower.build.values import Value

_GELU_SINCE = 20


@writes("gelu", words=approximation_words)
def gelu(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """ONNX's Gelu from opset 20 on, which onnxruntime supports in float32."""
    del examples
    x, approximate = widened(b, b.inputs[0]), str(attributes["approximate"])
    if b.opset < _GELU_SINCE or b.dtype == torch.float64:
        return b.op.cast(activation.gelu(b.op, x, approximate=approximate), b.dtype)
    named = None if approximate == "none" else approximate
    return b.op.cast(b.op.Gelu(x, approximate=named), b.dtype)


@writes("silu")
def silu(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """x * sigmoid(x), which onnxruntime fuses."""
    del examples, attributes
    return b.op.cast(activation.silu(b.op, b.inputs[0]), b.dtype)


@writes("hard_sigmoid")
def hard_sigmoid(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """HardSigmoid with a slope of 1/6; its formula in float64."""
    del examples, attributes
    return b.op.cast(activation.hardsigmoid(b.op, widened(b, b.inputs[0])), b.dtype)


@writes("hard_swish")
def hard_swish(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """x * hard_sigmoid(x), to which onnxruntime expands ONNX's HardSwish."""
    del examples, attributes
    return b.op.cast(activation.hardswish(b.op, b.inputs[0]), b.dtype)


@writes("log_softmax")
def log_softmax(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """LogSoftmax along the axis in the attribute of the call."""
    del examples, attributes
    wide = widened(b, b.inputs[0])
    return b.op.cast(b.op.LogSoftmax(wide, axis=AttributeRef("axis", "int")), b.dtype)
