"""Writes DequantizeLinear as plain ops where onnxruntime would not compute what it means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from coreai_onnx.passes.analysis.linear_quantization import BYTES, is_zero
from coreai_onnx.passes.analysis.quantized_layers import (
    MOVED,
    Steps,
    before_transposes,
    has_other_bias_scale,
    quantized_rows,
    steps_of,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    constant_of,
    dtype_of,
    is_standard,
    made_by,
    static_shape_of,
)
from coreai_onnx.passes.engine.why import Why

_FLOAT = np.dtype(np.float32)
_INT8, _INT32 = np.dtype(np.int8), np.dtype(np.int32)
_OUTPUT_DTYPE_SINCE = 21
"""From this opset on, onnxruntime writes an int8 QuantizeLinear that it then refuses (R3)."""


@rewrites()
def decompose_dequantization(edit: Edit, node: gs.Node, why: Why) -> bool:
    """DequantizeLinear that onnxruntime replaces by another computation → Cast, Sub, Mul.

    MatMul(x, DQ(w:int8, s, z))     becomes     MatMul(x, Mul(Sub(Cast(w), z), s))

    The values are equal to the bit, and onnxruntime computes them once, when it loads the file. The
    integers stay in the file. Without the pass, onnxruntime 1.31 with its default options

    1. makes a ``MatMulNBits`` of a weight whose other factor is not quantized to 8 bits, and rounds
       that factor to 8 bits;
    2. takes scales along the inputs of a product or convolution for those of its outputs;
    3. cannot load values quantized to int8, int32 or with a scale per channel before some ops;
    4. takes an int32 bias to have the product of the scales of the factors.
    """
    steps = steps_of(node)
    if steps is None or not _is_replaced(node, steps, edit.graph):
        return False
    return _decompose(edit, node, steps) or why("the last block of an axis is shorter", node)


def _is_replaced(node: gs.Node, steps: Steps, graph: gs.Graph) -> bool:
    """Whether onnxruntime would replace a node, for any of its readers."""
    source, _ = before_transposes(node.inputs[0], 0)
    is_computed = not isinstance(source, gs.Constant)
    # Case 3, whatever reads the values.
    if is_computed and (steps.dtype == _INT32 or not steps.is_scalar):
        return True
    # Case 3 for int8: onnxruntime moves the quantization across the reader and writes it anew.
    is_written_wrong = steps.dtype == _INT8 and (graph.opset or 0) >= _OUTPUT_DTYPE_SINCE
    return any(
        (is_written_wrong and is_computed and is_standard(reader, *MOVED))
        or _is_wrong_factor(reader, place, steps)
        for reader, place in _readers(node.outputs[0])
    )


def _readers(tensor: gs.Tensor) -> list[tuple[gs.Node, int]]:
    return [
        (reader, place)
        for reader in {id(reader): reader for reader in tensor.outputs}.values()
        for place, value in enumerate(reader.inputs)
        if value is tensor
    ]


def _is_wrong_factor(reader: gs.Node, place: int, steps: Steps) -> bool:
    """Whether a product or a convolution would compute something else."""
    if is_standard(reader, "Transpose") and steps.rank == 2:
        turned = steps.transposed()
        return any(
            _is_wrong_factor(other, index, turned) for other, index in _readers(reader.outputs[0])
        )
    bias = reader.inputs[place]
    if is_standard(reader, "Add"):  # onnxruntime makes a Gemm of it
        product = made_by(reader.inputs[1 - place], "MatMul")
        return product is not None and has_other_bias_scale(product, bias)
    # Case 4 in a single op.
    if place == 2:
        return is_standard(reader, "Gemm", "Conv") and has_other_bias_scale(reader, bias)
    if is_standard(reader, "Conv"):
        # Case 2: filters are the first axis of the weight.
        return place == 1 and steps.is_weight and steps.axis not in (None, 0)
    if not is_standard(reader, "MatMul", "Gemm"):
        return False
    if place == 0:
        return not steps.is_scalar
    if not steps.is_weight:
        return False
    # Case 1 for a factor that is not on integers, case 2 for the axis of the scales.
    outputs = 0 if attribute_of(reader, "transB", 0) else 1
    on_integers = steps.dtype in BYTES and not steps.block and quantized_rows(reader.inputs[0])
    return not on_integers or steps.axis not in (None, outputs)


def _decompose(edit: Edit, node: gs.Node, steps: Steps) -> bool:
    integers, scale = node.inputs[0], node.inputs[1]
    shape = static_shape_of(integers)
    form = steps.form(shape)
    if form is None:
        return False
    values = edit.add("Cast", node, [integers], _FLOAT, integers.shape, to=onnx.TensorProto.FLOAT)
    if steps.block:
        values = _reshaped(edit, node, values, steps.groups(shape or ()))
    if len(node.inputs) > 2 and not is_zero(node.inputs[2]):
        zero = _number(edit, node, node.inputs[2], form)
        values = edit.add("Sub", node, [values, zero], _FLOAT, values.shape)
    factor = _number(edit, node, scale, form)
    target_dtype = attribute_of(node, "output_dtype", 0) or dtype_of(scale)
    is_float = target_dtype in (_FLOAT, onnx.TensorProto.FLOAT)
    if is_float and not steps.block:
        edit.become(node, "Mul", [values, factor])
        return True
    values = edit.add("Mul", node, [values, factor], _FLOAT, values.shape)
    if steps.block:
        target = edit.constant(f"{node.outputs[0].name}_shape", np.array(shape, np.int64))
        if is_float:
            edit.become(node, "Reshape", [values, target])
            return True
        values = edit.add("Reshape", node, [values, target])
    to = (
        target_dtype
        if isinstance(target_dtype, int)
        else onnx.helper.np_dtype_to_tensor_dtype(target_dtype)
    )
    edit.become(node, "Cast", [values], to=to)
    return True


def _number(edit: Edit, node: gs.Node, part: gs.Tensor, form: Sequence[int]) -> gs.Tensor:
    """Return a scale or zero point in float32, in a shape that broadcasts to the integers."""
    constant = constant_of(part)
    if constant is not None:
        if constant.dtype == _FLOAT and constant.shape == tuple(form):
            return part
        values = constant.astype(_FLOAT).reshape(form)
        return edit.constant(f"{part.name}_{node.outputs[0].name}", values)
    if dtype_of(part) != _FLOAT:
        part = edit.add("Cast", node, [part], to=onnx.TensorProto.FLOAT)
    return _reshaped(edit, node, part, form) if form else part


def _reshaped(edit: Edit, node: gs.Node, value: gs.Tensor, form: Sequence[int]) -> gs.Variable:
    target = edit.constant(f"{value.name}_shape", np.array(form, np.int64))
    shape = None if -1 in form else form
    return edit.add("Reshape", node, [value, target], _FLOAT, shape)
