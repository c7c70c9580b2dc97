"""Bodies of the normalizations over the last axes, and of vector norms.

A body uses ONNX's own op if it is equivalent and onnxruntime supports the dtype. Otherwise it is
the formula in elementary ops, in float32 (float64 for float64). It does not depend on ranks, so
that one body serves every call.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, always_cast
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.nodes.scope import AttributeRef
from coreai_onnx.lower.nodes.values import Value, dtype_of

EPS = AttributeRef("eps", "float")
_PARAMETERS = ("scale", "bias", "mean", "variance")
_MOST_AXES = 4
"""The largest number of trailing axes with a variant of their own."""
_NOT_FUSED_SINCE = 23
"""From this opset on, the sum and a layer norm remain two ops."""


# ---------------------------------------------------------------------- names of variants
def parameter_words(variant: Variant) -> list[str]:
    """Return variant words: which of scale and bias a call passes, and whether dtypes differ."""
    inputs = variant.inputs
    has_bias = any(declared.name == "bias" for declared in variant.composite.inputs)
    words = []
    if "scale" not in inputs:
        words = ["bias_only"] if "bias" in inputs else ["unscaled"]
    elif has_bias and "bias" not in inputs:
        words = ["no_bias"]
    dtypes = {inputs[n].dtype for n in _PARAMETERS if n in inputs} - {inputs["input"].dtype}
    if dtypes:
        words.append("wide_scale" if has_bias or dtypes == {torch.float32} else "narrow_scale")
    return words


def _words(variant: Variant) -> list[str]:
    """Return variant words: the number of trailing axes, and which of scale and bias."""
    axes = list(variant.attributes["axes"])
    words = [] if axes == [-1] else [f"axes{len(axes)}" if _few_trailing(variant) else "axes"]
    words += parameter_words(variant)
    has_bias = any(declared.name == "bias" for declared in variant.composite.inputs)
    spelled = has_bias and not _has_normalized_shape(variant)
    return [*words, "wide_scale"] if spelled and "wide_scale" not in words else words


def _few_trailing(variant: Variant) -> bool:
    """Whether the normalized axes are the last ones, and few enough for their own variant."""
    axes = sorted(variant.attributes["axes"])
    return axes == list(range(-len(axes), 0)) and len(axes) <= _MOST_AXES


def _has_normalized_shape(variant: Variant) -> bool:
    """Whether scale and bias have the normalized shape, which is not broadcast."""
    count = len(variant.attributes["axes"])
    parameters = [e for name, e in variant.inputs.items() if name in _PARAMETERS]
    return all(len(e.dims) == count and 1 not in e.dims for e in parameters)


# ---------------------------------------------------------------------- the last axes
@writes("layer_norm", words=_words)
def layer_norm(b: BodyBuilder) -> Value:
    """LayerNormalization, which computes in float32 and needs a scale of the normalized shape."""
    return _layer_norm_of(b, b.inputs[0])


@writes("rms_norm", words=_words)
def rms_norm(b: BodyBuilder) -> Value:
    """RMSNormalization, which rounds before scaling, like the reference for a same-dtype scale."""
    return _rms_norm_of(b, b.inputs[0])


@writes("skip_rms_norm", words=_words)
def skip_rms_norm(b: BodyBuilder) -> list[Value]:
    """The sum, rounded to its dtype, and its norm by the body of ``rms_norm``."""
    total = _sum(b, "Add")
    return [_rms_norm_of(b, total), total]


@writes("skip_layer_norm", words=_words)
def skip_layer_norm(b: BodyBuilder) -> list[Value]:
    """The sum, rounded to its dtype, and its norm by the body of ``layer_norm``.

    onnxruntime fuses Add and LayerNormalization into one op, which since 1.30 takes up to four
    times as long as the two (docs/performance.md); it does not fuse Sum. Lower opsets are for older
    releases and use Add.
    """
    total = _sum(b, "Sum" if b.opset >= _NOT_FUSED_SINCE else "Add")
    return [_layer_norm_of(b, total), total]


def _sum(b: BodyBuilder, op_type: str) -> Value:
    """Return ``input + skip``, rounded.

    The casts are explicit: onnxruntime would insert casts around a float16 addition itself, but
    removes those later, together with the rounding.
    """
    add = getattr(b.op, op_type)
    return b.op.cast(add(*(b.widened(x) for x in b.inputs[:2])), b.dtype)


def _layer_norm_of(b: BodyBuilder, x: Value) -> Value:
    """Return the layer norm of a value, with scale and bias."""
    op, scale, bias = b.op, b.input("scale"), b.input("bias")
    computed = b.dtype in (torch.float32, torch.float16)
    wide_parameters = mixed(b) or not _has_normalized_shape(b.variant)
    # LayerNormalization requires a scale, in the dtype of the input, and axes up to the last.
    if computed and _few_trailing(b.variant) and scale is not None and not wide_parameters:
        operands = [scale] if bias is None else [scale, bias]
        axis = min(b.attributes["axes"])
        return op.LayerNormalization(x, *operands, axis=axis, epsilon=EPS, stash_type=1)
    wide, axes = b.widened(x), _axes(b)
    centered = op.Sub(wide, op.ReduceMean(wide, axes, keepdims=1))
    variance = op.ReduceMean(op.Mul(centered, centered), axes, keepdims=1)
    result = op.Div(centered, op.Sqrt(op.Add(variance, eps(b))))
    if scale is not None:
        result = op.Mul(result, parameter(b, scale, always=wide_parameters))
    if bias is not None:
        result = op.Add(result, parameter(b, bias, always=wide_parameters))
    return op.cast(result, b.dtype)


def _rms_norm_of(b: BodyBuilder, x: Value) -> Value:
    """Return the root-mean-square norm of a value, with a scale."""
    op, scale = b.op, b.input("scale")
    # RMSNormalization exists from opset 23 on.
    computed = b.dtype in (torch.float32, torch.float16) and b.opset >= 23
    if computed and _few_trailing(b.variant) and scale is not None and dtype_of(scale) == b.dtype:
        axis = min(b.attributes["axes"])
        return op.RMSNormalization(x, scale, axis=axis, epsilon=EPS, stash_type=1)
    wide = b.widened(x)
    # onnxruntime fuses the formula with Pow, in float32 (docs/performance.md)
    square = op.Pow(wide, 2.0) if b.dtype == torch.float32 else op.Mul(wide, wide)
    mean_square = op.ReduceMean(square, _axes(b), keepdims=1)
    result = op.Div(wide, op.Sqrt(op.Add(mean_square, eps(b))))
    if scale is not None:
        if dtype_of(scale) != torch.float32:
            result = b.widened(op.cast(result, b.dtype))  # rounded before it is scaled
        result = op.Mul(result, parameter(b, scale))
    return op.cast(result, b.dtype)


def _axes(b: BodyBuilder) -> Any:
    """Return trailing axes as a constant, other axes as the attribute of the call."""
    return b.attributes["axes"] if _few_trailing(b.variant) else b.ref("axes")


# ---------------------------------------------------------------------- parameters
def mixed(b: BodyBuilder) -> bool:
    """Whether a parameter has another dtype than the input."""
    parameters = (b.input(name) for name in _PARAMETERS)
    return any(p is not None and dtype_of(p) != b.dtype for p in parameters)


def parameter(b: BodyBuilder, x: Value, *, always: bool | None = None) -> Value:
    """Return a parameter in the compute dtype, always with a cast if dtypes are mixed.

    One body then holds for any other dtype.
    """
    has_cast = mixed(b) if always is None else always
    return always_cast(b.op, x, b.wide) if has_cast else b.widened(x)


def eps(b: BodyBuilder) -> Value:
    """Return the attribute ``eps`` in the compute dtype of the body."""
    return b.widened(b.attribute("eps"))


# ---------------------------------------------------------------------- vector norms
def _norm_words(variant: Variant) -> list[str]:
    order = float(variant.attributes["ord"])
    words = {1.0: "absolute", 0.0: "count", math.inf: "greatest", -math.inf: "least"}
    return [] if order == 2 else [words.get(order, "power")]


@writes("linalg_vector_norm", words=_norm_words)
def linalg_vector_norm(b: BodyBuilder) -> Value:
    """One reduction for the orders that have a reduction op; powers and a root for the others."""
    x, order = b.widened(b.inputs[0]), float(b.attributes["ord"])
    op = b.op
    if order in (1, 2):
        result = _reduced(b, f"ReduceL{int(order)}", x)
    elif order == 0:
        # NaN counts, as in torch: it does not equal 0.
        result = _reduced(b, "ReduceSum", op.cast(op.Not(op.Equal(x, 0.0)), dtype_of(x)))
    elif math.isinf(order):
        result = _extreme(b, op.Abs(x), largest=order > 0)
    else:
        power = b.widened(b.attribute("ord"))
        total = _reduced(b, "ReduceSum", op.Pow(op.Abs(x), power))
        result = op.Pow(total, op.Reciprocal(power))
    return op.cast(result, b.dtype)


def _extreme(b: BodyBuilder, x: Value, *, largest: bool) -> Value:
    """Return the greatest or least element, NaN if there is one.

    onnxruntime may ignore a NaN, depending on its position in the row.
    """
    extreme = _reduced(b, "ReduceMax" if largest else "ReduceMin", x)
    has_nan = _reduced(b, "ReduceMax", b.op.cast(b.op.IsNaN(x), torch.float32))
    return b.op.Where(b.op.Greater(has_nan, 0.0), float("nan"), extreme)


def _reduced(b: BodyBuilder, op_type: str, x: Value) -> Value:
    return b.op.node(op_type, x, b.ref("axes"), keepdims=b.ref("keep_dim"))
