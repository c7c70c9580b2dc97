"""Replaces products with 4-bit weights with onnxruntime's MatMulNBits."""

from __future__ import annotations

from coreai_onnx.model.packed_codes import pack_rows
from coreai_onnx.passes.analysis.quantized_layers import obstacle, second_factor
from coreai_onnx.passes.analysis.quantized_weights import (
    CodedWeight,
    QuantizedWeight,
    quantized_weight,
)
from coreai_onnx.passes.contrib.few_bits import BLOCKS, become_matmul_nbits
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import input_of, is_standard, shape_of
from coreai_onnx.passes.engine.why import Why

_BITS = 4
_STEPS = 1 << _BITS
"""The number of values that the bits can represent."""
_MIDDLE = 8
"""The default zero point of the op."""


@rewrites("MatMul", "Gemm")
def contrib_matmul_nbits(edit: Edit, node: gs.Node, why: Why) -> bool:
    """MatMul or Gemm with a 4-bit weight that is dequantized in blocks → MatMulNBits.

    DequantizeLinear(w:int4[n, k], scales, zeros) ─Transpose→ t, MatMul(x, t) → y
    becomes     com.microsoft::MatMulNBits(x, w:uint8[n, k / 32, 16], scales, zeros) → y

    Also if Cast, Sub and Mul dequantize the weight, from packed or unpacked integers, as long as
    no value needs more than 4 bits. The weight is packed when the model is written.
    """
    packed: dict[gs.Tensor, list[gs.Tensor]] = edit.once(dict)
    if len(node.inputs) < 2:
        return False
    matrix, axis = second_factor(node)
    weight = quantized_weight(matrix)
    if weight is None:
        return False
    packing = _packing(weight, axis)
    reason = obstacle(node, packing.outputs) if isinstance(packing, CodedWeight) else packing
    if reason or isinstance(packing, str):
        return why(reason, node)
    if matrix not in packed:
        packed[matrix] = packing.tensors(edit, "blocks", lambda zeros: pack_rows(zeros, _BITS))
    _write(edit, node, packing, packed[matrix])
    return True


def _packing(weight: QuantizedWeight, axis: int) -> CodedWeight | str:
    """Return the layout of a weight with input features on ``axis``, or why there is none."""
    if weight.axis != axis:
        return "blocks must lie along the input features"
    inputs, outputs = weight.shape[axis], weight.shape[1 - axis]
    sizes = (size for size in BLOCKS if weight.block % size == 0)
    block = next(sizes, None)
    # A shorter last block cannot be split into the smaller blocks evenly.
    if block is None or (block != weight.block and inputs % weight.block):
        return "onnxruntime does not support this block size"
    limits = weight.limits()
    if limits is None:
        return "the weight may differ between runtimes"
    low, high = limits
    if high - low >= _STEPS:
        return "the weight needs more than 4 bits"  # onnxruntime dequantizes those at each run
    # The lowest values of int4 and uint4 come first: with them, symmetric weights have the op's
    # default zero point, which is not stored.
    fits = (first for first in (-_MIDDLE, 0) if first <= low and high < first + _STEPS)
    return CodedWeight(weight, outputs, inputs, _BITS, block, next(fits, low))


def _write(edit: Edit, node: gs.Node, packing: CodedWeight, tensors: list[gs.Tensor]) -> None:
    inputs, bias = [node.inputs[0], *tensors], input_of(node, 2)
    last = node
    if node.op == "MatMul":
        addition = _added_row(edit, node, packing.outputs)
        if addition is not None:
            last, bias = addition
    sizes = {"K": packing.inputs, "N": packing.outputs, "bits": _BITS, "block_size": packing.block}
    become_matmul_nbits(edit, last, inputs, bias, sizes)
    if last is not node:
        edit.remove(node)


def _added_row(edit: Edit, product: gs.Node, columns: int) -> tuple[gs.Node, gs.Tensor] | None:
    """Return the Add of a constant row that is the product's only reader, and the row."""
    result = product.outputs[0]
    add = edit.only_reader(result)
    if add is None or not is_standard(add, "Add"):
        return None
    row = add.inputs[1] if add.inputs[0] is result else add.inputs[0]
    is_row = isinstance(row, gs.Constant) and shape_of(row) == (columns,)
    return (add, row) if is_row else None
