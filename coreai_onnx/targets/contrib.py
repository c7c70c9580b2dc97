"""onnxruntime's own operators, ``com.microsoft``: their releases, and their dtypes on CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from coreai_onnx.model.inventory import CONTRIB_DOMAIN, all_nodes, summarize
from coreai_onnx.targets.releases import (
    CONTRIB_SLOW_SINCE,
    Release,
    since,
    text_of,
)

# Mean and inverse standard deviation, whose type in the schemas of the ops is always float.
_STATISTICS = frozenset({1, 2})
_FLOAT32_OUTPUTS: dict[str, frozenset[int]] = {
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
"""The index from which inputs are float32 for any dtype of the others: scales of 8-bit caches."""
_UNPADDED = {
    "contrib": ("float32", "float16"),
    "webgpu": ("float32", "float16"),
    "cuda": ("float16",),
}
"""The dtypes of the operator for the attention of decoders, which takes no padding on the left."""


def default_padding(target: str, dtype: str = "float32") -> str:
    """Return the padding that a decoder is exported for: ``"none"`` or ``"left"``.

    Args:
        target: What will run it.
        dtype: The dtype of its computation.
    """
    return "none" if dtype in _UNPADDED.get(target, ()) else "left"


def contrib_since(op_type: str, attributes: Mapping[str, Any], inputs: int = 0) -> Release:
    """Return the oldest onnxruntime release that runs an op of ``com.microsoft`` correctly.

    Args:
        op_type: The op.
        attributes: Its attributes.
        inputs: Number of its inputs.
    """
    return since(CONTRIB_DOMAIN, op_type, attributes, inputs)


def is_faster(op_type: str, release: Release | None) -> bool:
    """Return whether an op is not slower than the ops that it replaces.

    Args:
        op_type: An op of ``com.microsoft``.
        release: The oldest release that must run it; None for the newest.
    """
    # Without a bound, the newest release may run the file, which is where these ops are slow.
    slow = CONTRIB_SLOW_SINCE.get(op_type)
    return slow is None or (release is not None and release < slow)


def summary(models: Mapping[str, ir.Model]) -> str:
    """Return the interface, composites, functions, operators and sizes of models as text.

    Args:
        models: The models by entrypoint.
    """
    parts = (summarize(name, model, contrib_needs(model)) for name, model in models.items())
    return "\n\n".join(parts)


def contrib_needs(model: ir.Model) -> str:
    """Return the oldest onnxruntime that has all ``com.microsoft`` ops of the model, ``"1.25"``.

    Returns an empty string if the model has no such ops.
    """
    releases = [
        contrib_since(
            node.op_type, {name: a.value for name, a in node.attributes.items()}, len(node.inputs)
        )
        for node in all_nodes(model)
        if node.domain == CONTRIB_DOMAIN
    ]
    return text_of(max(releases)) if releases else ""


def computes_half(node: ir.Node, dtype: ir.DataType) -> bool:
    """Return whether onnxruntime computes an op of another domain than ONNX's in 16 bits.

    Args:
        node: The node.
        dtype: ``FLOAT16``, or ``BFLOAT16``, for which its CPU kernels are not defined.
    """
    if dtype != ir.DataType.FLOAT16 or node.domain != CONTRIB_DOMAIN:
        return False
    scales = node.inputs[_SCALES.get(node.op_type, len(node.inputs)) :]
    return node.op_type in _FLOAT32_OUTPUTS and not any(scales)


def narrow_outputs(node: ir.Node, floats: list[bool]) -> list[bool]:
    """Return which of the outputs that are float32 have 16 bits if the inputs have."""
    wide = _FLOAT32_OUTPUTS[node.op_type]
    return [is_float and index not in wide for index, is_float in enumerate(floats)]
