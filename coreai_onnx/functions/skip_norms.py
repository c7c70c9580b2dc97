"""Bodies of a residual connection with the norm of its sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coreai_onnx.functions.body import BodyBuilder
from coreai_onnx.functions.norms import layer_norm_of, parameters, rms_norm_of, widened
from coreai_onnx.functions.trace import Example
from coreai_onnx.lower.values import Value

Examples = Sequence[Example | None]


def skip_rms_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> list[Value]:
    """The sum, rounded to its dtype, and its norm by the body of ``rms_norm``."""
    total = _sum(b)
    return [rms_norm_of(b, total, parameters(b, examples)[0], attributes), total]


def skip_layer_norm(
    b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]
) -> list[Value]:
    """The sum, rounded to its dtype, and its norm by the body of ``layer_norm``."""
    total = _sum(b)
    return [layer_norm_of(b, total, parameters(b, examples), attributes), total]


def _sum(b: BodyBuilder) -> Value:
    """Return ``input + skip``, rounded.

    The casts are spelled out: those that onnxruntime puts around a float16 addition it takes away
    again together with the rounding.
    """
    return b.op.cast(b.op.Add(*(widened(b, x) for x in b.inputs[:2])), b.dtype)
