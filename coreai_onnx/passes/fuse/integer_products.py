"""Multiplies activations that are quantized at run time by quantized weights, as integers."""

from __future__ import annotations

import numpy as np
import onnx

from coreai_onnx.passes.analysis.linear_quantization import (
    Dequantized,
    before_views,
    dequantized,
    dequantized_matrix,
    is_zero,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    dtype_of,
    input_of,
    is_standard,
    made_by,
    static_shape_of,
)
from coreai_onnx.passes.engine.why import Why

_LONGEST = (1 << 31) // (255 * 255)
"""The largest number of products whose sum fits in an int32."""


@rewrites("MatMul", "Gemm")
def integer_products(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Product of values quantized at run time and a quantized matrix → MatMulInteger.

    MatMul(DQ(q, s, z), DQ(w, t))     becomes     Cast(MatMulInteger(q, w, z)) * (s * t)

    onnxruntime computes the right side in one operator, and with the quantization if that is
    ``DynamicQuantizeLinear``. It computes the left side in float32, and dequantizes the weight in
    each run. The sums of integers are exact. With a scale that is known when the model is
    written, the left side is the form that onnxruntime computes on integers.
    """
    if not _is_plain(node):
        return False
    # Also through a Reshape, as torch decomposes a product of more than two axes.
    view, weight = made_by(node.inputs[0], "Reshape"), dequantized_matrix(node.inputs[1])
    values = dequantized(node.inputs[0] if view is None else view.inputs[0])
    if values is None or weight is None or isinstance(values.scale, gs.Constant):
        return False
    if values.axis is not None or dtype_of(values.steps) != np.uint8:
        return why("the activations are not uint8 with one scale", node)
    if not _has_scales_of_columns(node, weight):
        return why("the weight must have one scale, or one per column", node)
    _rewrite(edit, node, values, weight)
    return True


def _is_plain(node: gs.Node) -> bool:
    """Whether a Gemm has no factors, and does not transpose its first input."""
    factors = [attribute_of(node, name, 1.0) for name in ("alpha", "beta")]
    return factors == [1.0, 1.0] and not attribute_of(node, "transA", 0)


def _has_scales_of_columns(node: gs.Node, weight: Dequantized) -> bool:
    turned = bool(attribute_of(node, "transB", 0))
    rows, columns = static_shape_of(weight.steps) or (0, 0)
    return (columns if turned else rows) <= _LONGEST and weight.axis in {None, 0 if turned else 1}


def _rewrite(edit: Edit, node: gs.Node, values: Dequantized, weight: Dequantized) -> None:
    steps, scale, zero = _parameters(values)
    view = made_by(node.inputs[0], "Reshape")
    if view is not None:
        steps = edit.add("Reshape", node, [steps, view.inputs[1]], **view.attrs)
    matrix = weight.steps
    if attribute_of(node, "transB", 0):
        # MatMulInteger has no transB; pretranspose_weights stores the transposed integers in the
        # next round.
        shape = list(reversed(matrix.shape))
        matrix = edit.add("Transpose", node, [matrix], matrix.dtype, shape, perm=[1, 0])
    inputs = [steps, matrix, zero or gs.Variable.empty()]
    inputs += [] if weight.zero is None or is_zero(weight.zero) else [weight.zero]
    sums = edit.add("MatMulInteger", node, inputs)
    floats = edit.add("Cast", node, [sums], to=onnx.TensorProto.FLOAT)
    scales = edit.add("Mul", node, [scale, weight.scale])
    bias = input_of(node, 2)
    if bias is None:
        edit.become(node, "Mul", [floats, scales])
        return
    product = edit.add("Mul", node, [floats, scales])
    edit.become(node, "Add", [product, bias])


def _parameters(values: Dequantized) -> tuple[gs.Tensor, gs.Tensor, gs.Tensor | None]:
    """Return integers, scale and zero point; those of ``DynamicQuantizeLinear`` if it made them."""
    scale = before_views(values.scale)
    zero = None if values.zero is None else before_views(values.zero)
    # torch decomposes a dynamic quantization into its parameters and a QuantizeLinear with them.
    # onnxruntime fuses a MatMulInteger only with the integers of the op itself.
    quantize = made_by(values.steps, "QuantizeLinear")
    maker = scale.inputs[0] if scale.inputs else None
    if (
        maker is None
        or quantize is None
        or not is_standard(maker, "DynamicQuantizeLinear")
        or maker.inputs[0] is not quantize.inputs[0]
        or maker.outputs[1] is not scale
        or maker.outputs[2] is not zero
    ):
        return values.steps, scale, values.zero
    return maker.outputs[0], scale, zero
