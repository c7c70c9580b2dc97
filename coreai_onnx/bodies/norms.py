"""Bodies of the normalizations over trailing axes, over groups, and over channels.

A body uses ONNX's own op if it is equivalent and onnxruntime supports the dtype. Otherwise it is
the formula in elementary ops, in float32 (float64 for float64). It does not depend on ranks, so
that one body serves every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.trace import Example
from coreai_onnx.bodies.writers import Examples, present, writes
from coreai_onnx.composites.declaration import Composite
from coreai_onnx.lower.build.scope import AttributeRef
from coreai_onnx.lower.build.values import Value, dtype_of, ir_dtype

EPS = AttributeRef("eps", "float")
_PARAMETERS = ("scale", "bias", "mean", "variance")
_MOST_AXES = 4
"""The largest number of trailing axes with a body that uses ONNX's own op."""


# ---------------------------------------------------------------------- trailing axes
def presence(composite: Composite, examples: Examples) -> list[str]:
    """Return variant words: which of scale and bias a call passes, and whether dtypes differ."""
    given = present(composite, examples)
    has_bias = any(declared.name == "bias" for declared in composite.inputs)
    words = []
    if "scale" not in given:
        words = ["bias_only"] if "bias" in given else ["unscaled"]
    elif has_bias and "bias" not in given:
        words = ["no_bias"]
    first = examples[0]
    assert first is not None
    own = {given[n].dtype for n in _PARAMETERS if n in given} - {first.dtype}
    if own:
        words.append("wide_scale" if has_bias or own == {torch.float32} else "narrow_scale")
    return words


def trailing_words(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    """Return variant words: the number of trailing axes, and which of scale and bias."""
    axes = list(attributes["axes"])
    words = [] if axes == [-1] else [f"axes{len(axes)}" if trailing(attributes) else "axes"]
    words += presence(composite, examples)
    given = present(composite, examples)
    parameters = [given[n] for n in _PARAMETERS if n in given]
    shaped = all(len(e.dims) == len(axes) and 1 not in e.dims for e in parameters)
    spelled = "bias" in {i.name for i in composite.inputs} and not shaped
    return [*words, "wide_scale"] if spelled and "wide_scale" not in words else words


def _channel_words(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    del attributes
    return presence(composite, examples)


@writes("layer_norm", words=trailing_words)
def layer_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """LayerNormalization, which computes in float32 and needs a scale of the normalized shape."""
    return layer_norm_of(b, b.inputs[0], parameters(b, examples), attributes)


@writes("rms_norm", words=trailing_words)
def rms_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """RMSNormalization, which rounds before scaling, like the reference for a same-dtype scale."""
    return rms_norm_of(b, b.inputs[0], parameters(b, examples)[0], attributes)


class Parameter:
    """A scale or bias: its value and its dims.

    Args:
        value: An input of the body.
        example: Its dims.
    """

    def __init__(self, value: Value, example: Example) -> None:
        """Store both."""
        self.value, self.dims = value, example.dims
        self.dtype = dtype_of(value)


def parameters(b: BodyBuilder, examples: Examples) -> list[Parameter | None]:
    """Return scale and bias, None for those that calls omit."""
    found: list[Parameter | None] = []
    for name in ("scale", "bias"):
        index = next((i for i, d in enumerate(b.composite.inputs) if d.name == name), None)
        example = None if index is None else examples[index]
        value = b.given(name)
        found.append(None if example is None or value is None else Parameter(value, example))
    return found


def layer_norm_of(
    b: BodyBuilder,
    x: Value,
    given: Sequence[Parameter | None],
    attributes: Mapping[str, Any],
) -> Value:
    """Return the layer norm of a value, with scale and bias."""
    scale, bias = given
    op, own = b.op, b.dtype in (torch.float32, torch.float16)
    shaped = all(p is None or _has_normalized_shape(p, attributes) for p in given)
    wide_parameters = mixed(b) or not shaped
    if own and trailing(attributes) and scale is not None and not wide_parameters:
        operands = [p.value for p in given if p is not None]
        return op.LayerNormalization(
            x, *operands, axis=min(attributes["axes"]), epsilon=EPS, stash_type=1
        )
    wide, axes = widened(b, x), _axes(attributes)
    centered = op.Sub(wide, op.ReduceMean(wide, axes, keepdims=1))
    variance = op.ReduceMean(op.Mul(centered, centered), axes, keepdims=1)
    result = op.Div(centered, op.Sqrt(op.Add(variance, eps(b))))
    if scale is not None:
        result = op.Mul(result, parameter(b, scale.value, always_cast=wide_parameters))
    if bias is not None:
        result = op.Add(result, parameter(b, bias.value, always_cast=wide_parameters))
    return op.cast(result, b.dtype)


def rms_norm_of(
    b: BodyBuilder, x: Value, scale: Parameter | None, attributes: Mapping[str, Any]
) -> Value:
    """Return the root-mean-square norm of a value, with a scale."""
    op, own = b.op, b.dtype in (torch.float32, torch.float16) and b.opset >= 23
    if own and trailing(attributes) and scale is not None and scale.dtype == b.dtype:
        return op.RMSNormalization(
            x, scale.value, axis=min(attributes["axes"]), epsilon=EPS, stash_type=1
        )
    wide = widened(b, x)
    # onnxruntime fuses the formula with Pow, in float32 (docs/performance.md)
    square = op.Pow(wide, 2.0) if b.dtype == torch.float32 else op.Mul(wide, wide)
    mean_square = op.ReduceMean(square, _axes(attributes), keepdims=1)
    result = op.Div(wide, op.Sqrt(op.Add(mean_square, eps(b))))
    if scale is not None:
        if scale.dtype != torch.float32:
            result = widened(b, op.cast(result, b.dtype))  # rounded before it is scaled
        result = op.Mul(result, parameter(b, scale.value))
    return op.cast(result, b.dtype)


def trailing(attributes: Mapping[str, Any]) -> bool:
    """Whether the normalized axes are the last ones, and few enough for their own variant."""
    axes = sorted(attributes["axes"])
    return axes == list(range(-len(axes), 0)) and len(axes) <= _MOST_AXES


def _has_normalized_shape(parameter: Parameter, attributes: Mapping[str, Any]) -> bool:
    return len(parameter.dims) == len(attributes["axes"]) and 1 not in parameter.dims


def _axes(attributes: Mapping[str, Any]) -> Any:
    """Return trailing axes as a constant, other axes as the attribute of the call."""
    return attributes["axes"] if trailing(attributes) else AttributeRef("axes", "ints")


# ---------------------------------------------------------------------- groups and channels
@writes("group_norm", words=_channel_words)
def group_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """Normalize every group as a row; then apply scale and bias per channel.

    GroupNormalization is not used: its variance, mean(x²) - mean(x)², suffers from cancellation
    where torch's does not.
    """
    del examples, attributes
    op, x = b.op, b.inputs[0]
    shape = op.Shape(x)
    samples = op.Shape(x, start=0, end=1)
    groups = op.Reshape(b.scope.attribute(AttributeRef("num_groups", "int")), [1])
    size = op.Div(op.ReduceProd(op.Shape(x, start=1), keepdims=1), groups)
    rows = op.Reshape(widened(b, x), op.Concat(samples, groups, size, axis=0), allowzero=1)
    if b.dtype == torch.float64:
        normalized = _normalized(b, rows)
    else:
        one, zero = op.Expand(1.0, groups), op.Expand(0.0, groups)
        normalized = op.InstanceNormalization(rows, one, zero, epsilon=EPS)
    result = normalized
    if b.given("scale") is not None or b.given("bias") is not None:
        channels = op.Shape(x, start=1, end=2)
        places = op.ReduceProd(op.Shape(x, start=2), keepdims=1)
        target = op.Concat(samples, channels, places, axis=0)
        result = _scaled(b, op.Reshape(normalized, target, allowzero=1))
    return op.cast(op.Reshape(result, shape, allowzero=1), b.dtype)


@writes("instance_norm", words=_channel_words)
def instance_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """Normalize every channel of every sample; round narrow statistics, as torch does.

    InstanceNormalization is not used: it requires a scale, a bias and float32.
    """
    del examples, attributes
    op, x = b.op, b.inputs[0]
    scale, bias = b.given("scale"), b.given("bias")
    if b.dtype == torch.float32:
        channels = None if scale is not None and bias is not None else op.Shape(x, start=1, end=2)
        one = op.Expand(1.0, channels) if scale is None else parameter(b, scale)
        zero = op.Expand(0.0, channels) if bias is None else parameter(b, bias)
        return op.InstanceNormalization(x, one, zero, epsilon=EPS)
    shape = op.Shape(x)
    places = op.ReduceProd(op.Shape(x, start=2), keepdims=1)
    target = op.Concat(op.Shape(x, start=0, end=2), places, axis=0)
    rows = op.Reshape(widened(b, x), target, allowzero=1)
    mean, deviation = _moments(b, rows)
    rounded = [op.Reciprocal(deviation), mean]
    if not mixed(b):
        rounded = [widened(b, op.cast(s, b.dtype)) for s in rounded]
    normalized = op.Mul(op.Sub(rows, rounded[1]), rounded[0])
    result = op.Reshape(_scaled(b, normalized), shape, allowzero=1)
    return op.cast(result, b.dtype)


@writes("batch_norm", words=_channel_words)
def batch_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """BatchNormalization, in float32 for narrow dtypes."""
    del examples, attributes
    x, *parameters_ = b.inputs
    operands = [widened(b, x), *(parameter(b, p) for p in parameters_)]
    return b.op.cast(b.op.BatchNormalization(*operands, epsilon=EPS), b.dtype)


def _moments(b: BodyBuilder, rows: Value) -> tuple[Value, Value]:
    """Return mean and √(variance + eps) along the last of three axes."""
    mean = b.op.ReduceMean(rows, [2], keepdims=1)
    centered = b.op.Sub(rows, mean)
    variance = b.op.ReduceMean(b.op.Mul(centered, centered), [2], keepdims=1)
    return mean, b.op.Sqrt(b.op.Add(variance, eps(b)))


def _normalized(b: BodyBuilder, rows: Value) -> Value:
    mean, deviation = _moments(b, rows)
    return b.op.Div(b.op.Sub(rows, mean), deviation)


def _scaled(b: BodyBuilder, x: Value) -> Value:
    """Scale and shift ``[N, C, places]`` per channel."""
    scale, bias = b.given("scale"), b.given("bias")
    if scale is not None:
        x = b.op.Mul(x, b.op.unsqueeze(parameter(b, scale), [1]))
    if bias is not None:
        x = b.op.Add(x, b.op.unsqueeze(parameter(b, bias), [1]))
    return x


# ---------------------------------------------------------------------- parts
def mixed(b: BodyBuilder) -> bool:
    """Whether a parameter has another dtype than the input."""
    given = (b.given(name) for name in _PARAMETERS)
    return any(p is not None and dtype_of(p) != b.dtype for p in given)


def widened(b: BodyBuilder, x: Value) -> Value:
    """Return a value in the compute dtype of the body."""
    return b.op.cast(x, torch.float64 if b.dtype == torch.float64 else torch.float32)


def parameter(b: BodyBuilder, x: Value, *, always_cast: bool | None = None) -> Value:
    """Return a parameter in the compute dtype, always with a cast if dtypes are mixed.

    One body then holds for any other dtype.
    """
    wide = torch.float64 if b.dtype == torch.float64 else torch.float32
    if not (mixed(b) if always_cast is None else always_cast):
        return b.op.cast(x, wide)
    return b.op.Cast(x, to=int(ir_dtype(wide)))


def eps(b: BodyBuilder) -> Value:
    """Return the attribute ``eps`` in the compute dtype of the body."""
    return widened(b, b.scope.attribute(EPS))
