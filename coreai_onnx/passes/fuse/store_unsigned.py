"""Stores activations and weights of integer products as uint8."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.linear_quantization import HALF_RANGE, unsigned
from coreai_onnx.passes.analysis.quantized_layers import quantized_rows, steps_of
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    VIEWS,
    behind,
    constant_of,
    dtype_of,
    input_of,
    is_standard,
    made_by,
    scalar_of,
    static_shape_of,
)
from coreai_onnx.passes.engine.why import Why

_INT8, _UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
_MOVED = ("Transpose", *VIEWS)


@rewrites("QuantizeLinear")
def unsigned_activations(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Q/DQ with an int8 zero point → Q/DQ with a uint8 zero point that is 128 larger.

    Q(x, s, -5:int8) ─DQ(s, -5)→ y     becomes     Q(x, s, 123:uint8) ─DQ(s, 123)→ y

    The dequantized values are equal. On x86, onnxruntime's products of int8 by int8 are ten times
    slower than those of uint8 by int8, and some of its operators exist only for uint8.
    """
    shifted = edit.once(dict)
    zero = input_of(node, 2)
    if zero is None or dtype_of(zero) != _INT8 or static_shape_of(node.inputs[1]) not in ((), (1,)):
        return False
    steps = node.outputs[0]
    # The integers themselves change, so nothing else may read them.
    if edit.is_output(steps) or not all(_restores(r, node, edit) for r in steps.outputs):
        return why("the int8 values have readers other than DequantizeLinear", node)
    if id(zero) not in shifted:
        shifted[id(zero)] = unsigned(edit, node, zero)
    for user in [node, *steps.outputs]:
        inputs = [user.inputs[0], user.inputs[1], shifted[id(zero)]]
        # Without the output dtype, which is that of the zero point.
        attributes = {n: value for n, value in user.attrs.items() if n != "output_dtype"}
        edit.become(user, user.op, inputs, **attributes)
    steps.dtype = np.uint8
    return True


def _restores(reader: gs.Node, quantize: gs.Node, edit: Edit) -> bool:
    """Whether a reader dequantizes with the scale and the zero point of the quantization."""
    return (
        is_standard(reader, "DequantizeLinear")
        and edit.holds(reader)
        and len(reader.inputs) == 3
        and all(_same(reader.inputs[i], quantize.inputs[i]) for i in (1, 2))
    )


def _same(a: gs.Tensor, b: gs.Tensor) -> bool:
    value = scalar_of(a)
    return a is b or (value is not None and value == scalar_of(b) and dtype_of(a) == dtype_of(b))


_SAFE = 64
"""The largest magnitude of a weight for which 255 * (|a| + |b|) fits in an int16."""
_LAYERS = ("MatMul", "Gemm", "Conv")
_PRODUCTS = ("MatMulInteger", "ConvInteger")


@rewrites()
def unsigned_weights(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Integer product of uint8 and int8 → with a uint8 weight and zero points that are 128 larger.

    MatMulInteger(q, w:int8, z)     becomes     MatMulInteger(q, w + 128:uint8, z, 128)

    The sums are equal. On x86 without VNNI, onnxruntime adds pairs of products of uint8 and int8 in
    16 bits, which saturates; products of uint8 and uint8 are exact on every CPU, and as fast where
    there is VNNI. Weights within ±64, which cannot saturate, stay. The weights of
    ``DequantizeLinear`` around which onnxruntime selects integer products change likewise.
    """
    weights: dict[int, gs.Tensor] = edit.once(dict)
    place = _place(node)
    if place is None:
        return False
    reader, steps, zero = place
    if _is_safe(reader.inputs[steps]):
        return why("the weights are within ±64", node)
    _shift(edit, reader, steps, zero, weights)
    return True


def _place(node: gs.Node) -> tuple[gs.Node, int, int] | None:
    """Return the reader of the weight of an integer product, and its inputs for it and its zero."""
    if is_standard(node, *_PRODUCTS):
        dtypes = [dtype_of(node.inputs[i]) for i in (0, 1)]
        return (node, 1, 3) if dtypes == [_UINT8, _INT8] else None
    if not is_standard(node, *_LAYERS):
        return None
    rows = quantized_rows(node.inputs[0])
    activations = None if rows is None else steps_of(rows)
    if activations is None or activations.dtype != _UINT8:
        return None
    reader = made_by(behind(node.inputs[1], *_MOVED), "DequantizeLinear")
    weights = None if reader is None else steps_of(reader)
    # onnxruntime selects no integer product for weights with a scale per block.
    if reader is None or weights is None or weights.dtype != _INT8 or weights.block:
        return None
    return reader, 0, 2


def _is_safe(tensor: gs.Tensor) -> bool:
    # The whole weight is read, since a single large value can saturate.
    codes = constant_of(behind(tensor, *_MOVED))
    return codes is not None and -_SAFE <= codes.min(initial=0) <= codes.max(initial=0) <= _SAFE


def _shift(
    edit: Edit, reader: gs.Node, steps: int, zero: int, weights: dict[int, gs.Tensor]
) -> None:
    inputs = [*reader.inputs]
    zero_point = input_of(reader, zero)
    inputs[steps] = _moved(edit, reader, inputs[steps], weights)
    inputs += [gs.Variable.empty()] * (zero + 1 - len(inputs))
    if zero_point is None:
        # One number serves MatMulInteger for all columns; DequantizeLinear needs zero points in
        # the shape of its scales.
        form = () if steps else static_shape_of(reader.inputs[1])
        inputs[zero] = edit.constant("zero_u8", np.full(form or (), HALF_RANGE, np.uint8))
    else:
        inputs[zero] = unsigned(edit, reader, zero_point)
    edit.become(reader, reader.op, inputs, **reader.attrs)


def _moved(
    edit: Edit, reader: gs.Node, tensor: gs.Tensor, weights: dict[int, gs.Tensor]
) -> gs.Tensor:
    """Return integers as uint8, shifted before the transposes and views of a constant."""
    if id(tensor) not in weights:
        moved = made_by(tensor, *_MOVED)
        if moved is None:
            weights[id(tensor)] = unsigned(edit, reader, tensor)
        else:
            source = _moved(edit, reader, moved.inputs[0], weights)
            inputs = [source, *moved.inputs[1:]]
            weights[id(tensor)] = edit.add(
                moved.op, reader, inputs, np.uint8, tensor.shape, **moved.attrs
            )
    return weights[id(tensor)]
