"""Moves an addition into the product or convolution before it."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    dtype_of,
    input_of,
    made_by,
    rank_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

# onnxruntime has a MatMul of integers on a CPU but no such Gemm.
_DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64))


@rewrites("Add")
def matmul_add_to_gemm(edit: Edit, node: gs.Node, why: Why) -> bool:
    """MatMul of two matrices, plus a bias row → Gemm.

    x:[n, 8] ─MatMul(w)→ ─Add(b)→ y     becomes     Gemm(x, w, b) → y

    Only for rank 2: with a higher rank, a Gemm between two Reshapes is no faster in onnxruntime.
    """
    for tensor, bias in (node.inputs, node.inputs[::-1]):
        product = made_by(tensor, "MatMul")
        if product is None or not _fits(product, bias):
            continue
        if len(tensor.outputs) > 1 or edit.is_output(tensor) or not edit.holds(product):
            why("something else reads the product", node)
            continue
        edit.become(node, "Gemm", [*product.inputs, bias])
        edit.remove(product)
        return True
    return False


def _fits(product: gs.Node, bias: gs.Tensor) -> bool:
    shapes = [shape_of(tensor) for tensor in product.inputs]
    row, dtype = shape_of(bias), dtype_of(product.inputs[0])
    if any(shape is None or len(shape) != 2 for shape in shapes) or row is None:
        return False
    columns = shapes[1][1]  # type: ignore[index]  # known, checked above
    same = dtype in _DTYPES and all(dtype_of(t) == dtype for t in (product.inputs[1], bias))
    return same and columns is not None and row in ((columns,), (1, columns))


@rewrites("Add")
def add_to_conv_bias(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Conv plus a constant per channel → Conv with it as a bias.

    x ─Conv(w)→ ─Add(c:[8, 1, 1])→ y     becomes     x ─Conv(w, c:[8])→ y
    """
    for tensor, constant in (node.inputs, node.inputs[::-1]):
        conv = made_by(tensor, "Conv")
        if conv is None or not isinstance(constant, gs.Constant):
            continue
        if not _is_per_channel(conv, constant):
            why("the constant must have one value per channel", node)
            continue
        if len(tensor.outputs) > 1 or edit.is_output(tensor) or not edit.holds(conv):
            why("something else reads the convolution", node)
            continue
        bias = input_of(conv, 2)
        if bias is not None and not isinstance(bias, gs.Constant):
            why("the bias is computed", node)
            continue
        inputs = [*conv.inputs[:2], _bias(edit, conv, constant, bias)]
        edit.become(node, "Conv", inputs, **conv.attrs)
        edit.remove(conv)
        return True
    return False


def _is_per_channel(conv: gs.Node, constant: gs.Constant) -> bool:
    """Whether a constant has one value per channel, or one value for all channels."""
    weight, rank = conv.inputs[1], rank_of(conv.inputs[1])
    # A constant of a higher rank adds axes to the result.
    if rank is None or len(constant.shape) > rank or weight.shape[0] is None:
        return False
    dims = [1] * (rank - len(constant.shape)) + list(constant.shape)
    return dims[0] == 1 and dims[1] in (1, weight.shape[0]) and set(dims[2:]) == {1}


def _bias(
    edit: Edit, conv: gs.Node, constant: gs.Constant, bias: gs.Constant | None
) -> gs.Constant:
    channels = int(conv.inputs[1].shape[0])

    def added(*terms: np.ndarray) -> np.ndarray:
        row = np.broadcast_to(terms[0].reshape(-1), (channels,))
        return row if len(terms) == 1 else (row + terms[1]).astype(row.dtype)

    sources = [constant, *([] if bias is None else [bias])]
    return edit.lazy(f"{conv.inputs[1].name}.bias", added, sources, [channels])
