"""Bodies of residual connections followed by a norm of the sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.norms import (
    layer_norm_of,
    parameters,
    rms_norm_of,
    trailing_words,
    widened,
)
from coreai_onnx.bodies.writers import Examples, writes
from coreai_onnx.lower.build.values import Value

NOT_FUSED_SINCE = 23
"""From this opset on, the sum and a layer norm remain two ops."""


@writes("skip_rms_norm", words=trailing_words)
def skip_rms_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> list[Value]:
    """The sum, rounded to its dtype, and its norm by the body of ``rms_norm``."""
    total = _sum(b, "Add")
    return [rms_norm_of(b, total, parameters(b, examples)[0], attributes), total]


@writes("skip_layer_norm", words=trailing_words)
def skip_layer_norm(
    b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]
) -> list[Value]:
    """The sum, rounded to its dtype, and its norm by the body of ``layer_norm``.

    onnxruntime fuses Add and LayerNormalization into one op, which since 1.30 takes up to four
    times as long as the two (docs/performance.md); it does not fuse Sum. Lower opsets are for older
    releases and use Add.
    """
    total = _sum(b, "Sum" if b.opset >= NOT_FUSED_SINCE else "Add")
    return [layer_norm_of(b, total, parameters(b, examples), attributes), total]


def _sum(b: BodyBuilder, op_type: str) -> Value:
    """Return ``input + skip``, rounded.

    The casts are explicit: onnxruntime would insert casts around a float16 addition itself, but
    removes those later, together with the rounding.
    """
    add = getattr(b.op, op_type)
    return b.op.cast(add(*(widened(b, x) for x in b.inputs[:2])), b.dtype)
