"""Ops that are lowered to composites: calls of a function."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.composites.declaration import FLOAT_DTYPES
from coreai_onnx.lower.aten.nn.normalization import default_eps
from coreai_onnx.lower.build.attention_call import call_attention
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import (
    Dim,
    Value,
    dims_of,
    dtype_of,
    is_complex,
    rank_of,
)
from coreai_onnx.lower.walk.registry import composes


@composes("aten.layer_norm.default", whole=True)
def layer_norm(
    op: OpBuilder,
    input: Value,
    normalized_shape: Sequence[Dim],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value | None:
    """The composite ``layer_norm`` over the trailing axes."""
    del cudnn_enable
    axes = _trailing_axes(input, normalized_shape)
    if axes is None:
        return None
    return op.composite("layer_norm", [input, weight, bias], axes=axes, eps=eps)


@composes("aten.native_layer_norm.default")
def native_layer_norm(
    op: OpBuilder,
    input: Value,
    normalized_shape: Sequence[Dim],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> list[Value | None] | None:
    """The composite ``layer_norm``, if mean and rstd are unused."""
    result = layer_norm(op, input, normalized_shape, weight, bias, eps)
    return None if result is None else [result, None, None]


@composes("aten.rms_norm.default", whole=True)
def rms_norm(
    op: OpBuilder,
    input: Value,
    normalized_shape: Sequence[Dim],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value | None:
    """The composite ``rms_norm`` over the trailing axes; eps defaults to torch's epsilon."""
    axes = _trailing_axes(input, normalized_shape)
    if axes is None:
        return None
    if eps is None:
        eps = default_eps(dtype_of(input))
    return op.composite("rms_norm", [input, weight], axes=axes, eps=eps)


@composes("aten._fused_rms_norm.default")
def fused_rms_norm(
    op: OpBuilder,
    input: Value,
    normalized_shape: Sequence[Dim],
    weight: Value | None,
    eps: float | None,
) -> list[Value | None] | None:
    """The composite ``rms_norm``, if rstd is unused."""
    result = rms_norm(op, input, normalized_shape, weight, eps)
    return None if result is None else [result, None]


@composes("aten.scaled_dot_product_attention.default", whole=True)
def scaled_dot_product_attention(
    op: OpBuilder,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value | None:
    """The composite of the same name; causal alignment is upper left, as in torch."""
    tensors = query, key, value
    if dropout_p or not is_covered(*tensors) or min(rank_of(x) for x in tensors) < 2:
        return None
    causal = is_causal and attn_mask is None
    attributes = {
        "scale": scale,
        "is_causal": int(causal),
        "causal_alignment": "upper_left" if causal else "lower_right",
    }
    return call_attention(op, [*tensors, attn_mask], attributes, grouped=enable_gqa)


@composes("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    op: OpBuilder,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> list[Value | None] | None:
    """Attention as torch's own decomposition writes it for the CPU."""
    result = scaled_dot_product_attention(
        op, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
    )
    return None if result is None else [result, None]


def is_covered(*values: Value | None) -> bool:
    """Whether composites support these values: real floating-point tensors that are not empty."""
    given = [x for x in values if x is not None]
    return all(_is_real_float(x) and 0 not in dims_of(x) for x in given)


def _is_real_float(x: Value) -> bool:
    return not is_complex(x) and str(dtype_of(x)).removeprefix("torch.") in FLOAT_DTYPES


def _trailing_axes(input: Value, normalized_shape: Sequence[Dim]) -> list[int] | None:
    """Return the normalized axes, negative; None where the composite does not apply."""
    count = len(normalized_shape)
    return list(range(-count, 0)) if is_covered(input) and count else None
