"""Keeps onnxruntime from quantizing layers in float32 between quantized values."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.quantized_layers import MOVED, steps_of, sum_scales
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    behind,
    constant_of,
    input_of,
    is_standard,
    made_by,
    rank_of,
)
from coreai_onnx.passes.engine.why import Why

_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_CLAMPS = ("Relu", "Clip", "Cast")
# Half of the range of int32: the other half is left to the sums of products.
_LARGEST = 1 << 30
"""The largest magnitude of a bias in the units of the sums, which are added to it in int32."""


@rewrites()
def keep_float_layers(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Layer in float32 between dequantized and quantized values → with a LeakyRelu of slope 1.

    DQ(q) ─Conv(w:float)→ ─Q→ y     becomes     DQ(q) ─Conv(w)→ ─LeakyRelu<alpha=1>→ ─Q→ y

    LeakyRelu of slope 1 changes no value, and onnxruntime makes it a part of the convolution or
    product. Without it, onnxruntime 1.31 quantizes the weight with one scale for the whole tensor,
    although the model keeps it in float32. It also rounds a bias to int32 in the units of the sums:
    a large one is clipped, or overflows, if the weight is quantized as well.
    """
    layer = _layer(node)
    if layer is None or not _is_changed(*layer):
        return False
    if not _is_quantized(node.outputs[0]):
        return why("the result is not quantized", node)
    (result,), inputs = node.outputs, list(node.inputs)
    dtype, shape = result.dtype, result.shape
    inner = edit.add(node.op, node, inputs, dtype, shape, domain=node.domain, **node.attrs)
    edit.become(node, "LeakyRelu", [inner], alpha=1.0)
    return True


def _layer(node: gs.Node) -> tuple[gs.Node, gs.Tensor | None] | None:
    """Return the product or convolution that a node is the last op of, and its bias.

    onnxruntime makes a Gemm of a MatMul and a row that is added to it.
    """
    if is_standard(node, *_LAYERS):
        return node, input_of(node, 2)
    if is_standard(node, "Add"):
        for tensor, bias in (node.inputs, node.inputs[::-1]):
            product = made_by(tensor, "MatMul")
            if product is not None and rank_of(bias) in (1, 2):
                return product, bias
    return None


def _is_changed(node: gs.Node, bias: gs.Tensor | None) -> bool:
    """Whether onnxruntime would quantize the weight, or clip the bias."""
    if not _is_dequantized(node.inputs[0]):
        return False
    if not _is_dequantized(node.inputs[1]):
        return True
    values = None if bias is None else constant_of(bias)
    scales = sum_scales(node)
    if values is None or scales is None or values.dtype.kind != "f":
        return False
    # A scale of 0 makes any bias infinitely large, as it should.
    with np.errstate(divide="ignore", invalid="ignore"):
        return bool((np.abs(values.reshape(-1).astype(np.float64)) / scales > _LARGEST).any())


def _is_dequantized(tensor: gs.Tensor) -> bool:
    node = made_by(behind(tensor, *MOVED), "DequantizeLinear")
    return node is not None and steps_of(node) is not None


def _is_quantized(tensor: gs.Tensor) -> bool:
    """Whether a result is quantized, perhaps behind ops that onnxruntime swaps it with."""
    # No recursion, since networks have long chains of such ops.
    waiting = [tensor]
    while waiting:
        for reader in waiting.pop().outputs:
            if is_standard(reader, "QuantizeLinear"):
                return True
            if is_standard(reader, *MOVED, *_CLAMPS):
                waiting.append(reader.outputs[0])
    return False
