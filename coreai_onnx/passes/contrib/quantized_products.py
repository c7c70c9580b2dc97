"""Replaces products with 4-bit weights with onnxruntime's MatMulNBits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coreai_onnx.model.packed_codes import pack_codes, pack_rows
from coreai_onnx.passes.analysis.quantized_layers import obstacle, second_factor
from coreai_onnx.passes.analysis.quantized_weights import QuantizedWeight, quantized_weight
from coreai_onnx.passes.contrib.few_bits import BLOCKS, Sizes, become_matmul_nbits
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import lazy_constant
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import input_of, is_standard, shape_of
from coreai_onnx.passes.engine.why import Why

_BITS = 4
_STEPS = 1 << _BITS
"""The number of values that the bits can represent."""
_MIDDLE = 8
"""The default zero point of the op."""


@dataclass(frozen=True)
class _Packing:
    """The layout in which the op reads a weight: one row per output, in blocks.

    Attributes:
        weight: The quantized weight.
        outputs: Number of rows.
        inputs: Number of columns.
        block: Number of columns that share a scale, a block size that onnxruntime supports.
        lowest: The quantized value that is stored as zero bits.
    """

    weight: QuantizedWeight
    outputs: int
    inputs: int
    block: int
    lowest: int

    @property
    def blocks(self) -> int:
        """The number of blocks in a row."""
        return -(-self.inputs // self.block)

    def steps(self, *sources: np.ndarray) -> np.ndarray:
        """Return the weight, two values per byte, low bits first: ``[n, blocks, bytes]``."""
        steps = self.weight.steps(*sources).astype(np.int16).reshape(self.weight.shape)
        # The op reads whole blocks; it ignores what is after the last column.
        bits = np.zeros((self.outputs, self.blocks * self.block), np.uint8)
        bits[:, : self.inputs] = self.weight.by_rows(steps) - self.lowest
        return pack_codes(bits, _BITS).reshape(self.outputs, self.blocks, -1)

    def scales(self, *sources: np.ndarray) -> np.ndarray:
        """Return the scales, ``[n, blocks]``."""
        return self._split(self.weight.per_block(self.weight.scales(*sources)))

    def zeros(self) -> np.ndarray | None:
        """Return the zero points, two per byte; None if they are the op's default."""
        zeros = self._split(self.weight.zeros) - self.lowest
        return None if np.all(zeros == _MIDDLE) else pack_rows(zeros, _BITS)

    def _split(self, values: np.ndarray) -> np.ndarray:
        """Repeat the values of each block for the smaller blocks that onnxruntime supports."""
        return np.repeat(self.weight.by_rows(values), self.weight.block // self.block, axis=1)


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
    reason = obstacle(node, packing.outputs) if isinstance(packing, _Packing) else packing
    if reason or isinstance(packing, str):
        return why(reason, node)
    tensors = packed.get(matrix)
    if tensors is None:
        tensors = packed[matrix] = _tensors(edit, packing)
    _write(edit, node, packing, tensors)
    return True


def _packing(weight: QuantizedWeight, axis: int) -> _Packing | str:
    """Return the layout of a weight with input features on ``axis``, or why there is none."""
    if weight.axis != axis:
        return "the blocks do not go along the inputs"
    inputs = weight.shape[axis]
    sizes = (size for size in BLOCKS if weight.block % size == 0)
    block = next(sizes, None)
    # A shorter last block cannot be split into the smaller blocks evenly.
    if block is None or (block != weight.block and inputs % weight.block):
        return "onnxruntime has no blocks of that size"
    limits = weight.limits()
    if limits is None:
        return "the weight is not the same in every runtime"
    low, high = limits
    if high - low >= _STEPS:
        return "the weight needs more than 4 bits"  # onnxruntime dequantizes those at each run
    # The lowest values of int4 and uint4 come first: with them, symmetric weights have the op's
    # default zero point, which is not stored.
    fits = (first for first in (-_MIDDLE, 0) if first <= low and high < first + _STEPS)
    return _Packing(weight, weight.shape[1 - axis], inputs, block, next(fits, low))


def _tensors(edit: Edit, packing: _Packing) -> list[gs.Tensor]:
    """Return the weight as the op reads it: values, scales, and zero points if there are any."""
    names, weight = context_of(edit.graph).names, packing.weight
    source = weight.steps.constants[0].name
    size = [packing.outputs, packing.blocks]
    steps = lazy_constant(
        names.claim(f"{source}.4_bits"),
        packing.steps,
        weight.steps.constants,
        [*size, packing.block // 2],
        np.dtype(np.uint8),
    )
    scales = lazy_constant(
        names.claim(f"{weight.scales.constants[0].name}.blocks"),
        packing.scales,
        weight.scales.constants,
        size,
        np.dtype(np.float32),
    )
    zeros = packing.zeros()
    made: list[gs.Tensor] = [steps, scales]
    return made if zeros is None else [*made, edit.constant(f"{source}.zero_points", zeros)]


def _write(edit: Edit, node: gs.Node, packing: _Packing, tensors: list[gs.Tensor]) -> None:
    """Replace a product, and the bias added to it, with the op."""
    inputs, bias = [node.inputs[0], *tensors], input_of(node, 2)
    last = node
    if node.op == "MatMul":
        found = _added_row(edit, node, packing.outputs)
        if found is not None:
            last, bias = found
    sizes = Sizes(packing.inputs, packing.outputs, _BITS, packing.block)
    become_matmul_nbits(edit, last, inputs, bias, sizes)
    if last is not node:
        edit.remove(node)


def _added_row(edit: Edit, product: gs.Node, columns: int) -> tuple[gs.Node, gs.Tensor] | None:
    """Return the Add of a constant row that is the product's only reader, and the row."""
    result = product.outputs[0]
    if len(result.outputs) != 1 or edit.is_output(result):
        return None
    (add,) = result.outputs
    if not is_standard(add, "Add") or not edit.holds(add):
        return None
    row = add.inputs[1] if add.inputs[0] is result else add.inputs[0]
    is_row = isinstance(row, gs.Constant) and shape_of(row) == (columns,)
    return (add, row) if is_row else None
