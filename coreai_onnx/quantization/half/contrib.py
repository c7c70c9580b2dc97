"""The ops of com.microsoft that onnxruntime computes in float16 on CPUs."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.model.inventory import CONTRIB_DOMAIN

_STATISTICS = frozenset({1, 2})
_WIDE_OUTPUTS: dict[str, frozenset[int]] = {
    **dict.fromkeys(
        """BiasGelu FastGelu FusedMatMul GatherBlockQuantized Gelu GroupQueryAttention MatMulNBits
        MultiHeadAttention QuickGelu RotaryEmbedding""".split(),
        frozenset(),
    ),
    "SkipLayerNormalization": _STATISTICS,
    "SkipSimplifiedLayerNormalization": _STATISTICS,
}
"""The outputs that are float32 for inputs of any dtype. All float inputs have the same dtype."""
_SCALES = {"GroupQueryAttention": 12}
"""The first of the inputs, scales of 8-bit caches, that are float32 in any case."""


def computes_half(node: ir.Node, dtype: ir.DataType) -> bool:
    """Return whether onnxruntime computes an op of another domain than ONNX's in 16 bits.

    Args:
        node: The node.
        dtype: ``FLOAT16``, or ``BFLOAT16``, for which its CPU kernels are not defined.
    """
    if dtype != ir.DataType.FLOAT16 or node.domain != CONTRIB_DOMAIN:
        return False
    scales = node.inputs[_SCALES.get(node.op_type, len(node.inputs)) :]
    return node.op_type in _WIDE_OUTPUTS and not any(scales)


def narrow_outputs(node: ir.Node, floats: list[bool]) -> list[bool]:
    """Return which of the outputs that are float32 have 16 bits if the inputs have."""
    wide = _WIDE_OUTPUTS[node.op_type]
    return [given and index not in wide for index, given in enumerate(floats)]
