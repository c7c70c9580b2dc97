"""Layers and products around which onnxruntime selects integer kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coreai_onnx.passes.analysis.linear_quantization import BYTES, holds_integers
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import (
    VIEWS,
    attribute_of,
    behind,
    constant_of,
    dtype_of,
    input_of,
    is_standard,
    made_by,
    maker,
    rank_of,
    shape_of,
    static_shape_of,
)

MOVED = (*VIEWS, "Transpose", "Slice", "MaxPool")
"""Ops that onnxruntime moves a quantization across (measured with 1.31)."""
_SAME_SCALE = 1e-3
"""The largest relative difference of a bias' scale from that of the sums. The one that torch
computes in float32 differs by 1e-7; a whole step in 2,000 is below the rounding of the result."""


@dataclass(frozen=True)
class Steps:
    """The integers that a ``DequantizeLinear`` reads.

    Attributes:
        dtype: Their dtype.
        rank: Their rank; None if it is unknown.
        axis: The axis of the scales; None for one scale.
        block: The number of neighbors along the axis that share a scale; 0 for one per index.
        is_weight: Whether they are a constant or an argument of a function.
    """

    dtype: np.dtype | None
    rank: int | None
    axis: int | None
    block: int
    is_weight: bool

    @property
    def is_scalar(self) -> bool:
        """Whether there is one scale."""
        return self.axis is None

    def transposed(self) -> Steps:
        """Return those of the transposed matrix."""
        return self if self.axis is None else replace(self, axis=1 - self.axis)

    def form(self, shape: Sequence[int] | None) -> list[int] | None:
        """Return the shape in which scales broadcast to the integers; None if it is unknown."""
        if self.axis is None:
            return []
        if not self.block:
            rank = self.rank
            return None if rank is None else [-1 if i == self.axis else 1 for i in range(rank)]
        if shape is None or shape[self.axis] % self.block:
            return None
        sizes = [*shape]
        sizes[self.axis : self.axis + 1] = [shape[self.axis] // self.block, 1]
        return sizes

    def groups(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the integers with an axis for the elements of a block."""
        assert self.axis is not None
        sizes = [*shape]
        sizes[self.axis : self.axis + 1] = [shape[self.axis] // self.block, self.block]
        return sizes


def steps_of(node: gs.Node) -> Steps | None:
    """Return what a ``DequantizeLinear`` reads; None for another node, and for float8."""
    if not is_standard(node, "DequantizeLinear") or len(node.inputs) < 2:
        return None
    integers, form = node.inputs[0], static_shape_of(node.inputs[1])
    zero, rank = input_of(node, 2), rank_of(integers)
    # ONNX gives both the same dtype, and a body of a function knows only that of its constants.
    dtype = dtype_of(integers) if zero is None else dtype_of(zero)
    if form is None or dtype is None or not holds_integers(dtype):
        return None
    source, _ = before_transposes(integers, 0)
    is_weight = maker(source) is None
    if form in {(), (1,)}:
        return Steps(dtype, rank, None, 0, is_weight)
    axis = int(attribute_of(node, "axis", 1))
    # Without the rank, an axis from the end cannot be counted from the front.
    if axis < 0 and rank is None:
        return None
    block = int(attribute_of(node, "block_size", 0))
    return Steps(dtype, rank, axis if axis >= 0 else axis + (rank or 0), block, is_weight)


def quantized_rows(tensor: gs.Tensor) -> gs.Node | None:
    """Return the ``DequantizeLinear`` of 8 bits with one scale that makes the rows of a product."""
    node = made_by(behind(tensor, *MOVED), "DequantizeLinear")
    steps = None if node is None else steps_of(node)
    return node if steps is not None and steps.is_scalar and steps.dtype in BYTES else None


def sum_scales(node: gs.Node) -> np.ndarray | None:
    """Return the scales of the sums of a product or convolution on integers, if constant."""
    rows, weight = quantized_rows(node.inputs[0]), made_by(node.inputs[1], "DequantizeLinear")
    if rows is None or weight is None:
        return None
    first, second = constant_of(rows.inputs[1]), constant_of(weight.inputs[1])
    if first is None or second is None:
        return None
    return np.asarray(first.reshape(()) * second.reshape(-1), np.float64)


def has_other_bias_scale(product: gs.Node, bias: gs.Tensor) -> bool:
    """Whether the int32 bias of a product or convolution has other scales than its sums."""
    source, scales = made_by(bias, "DequantizeLinear"), sum_scales(product)
    if source is None or scales is None:
        return False
    unit = constant_of(source.inputs[1])
    if unit is None:
        return False
    return not np.allclose(unit.reshape(-1).astype(np.float64), scales, rtol=_SAME_SCALE, atol=0)


_FLOAT32 = np.dtype(np.float32)


def second_factor(node: gs.Node) -> tuple[gs.Tensor, int]:
    """Return the second factor before its Transpose, and its axis of input features."""
    axis = int(node.op == "Gemm" and attribute_of(node, "transB", 0) == 1)
    return before_transposes(node.inputs[1], axis)


def before_transposes(tensor: gs.Tensor, axis: int) -> tuple[gs.Tensor, int]:
    """Return a matrix before its Transposes, and where ``axis`` is there."""
    while (turn := made_by(tensor, "Transpose")) is not None:
        if attribute_of(turn, "perm", [1, 0]) != [1, 0]:
            break
        tensor, axis = turn.inputs[0], 1 - axis
    return tensor, axis


def obstacle(node: gs.Node, outputs: int, dtype: np.dtype[Any] = _FLOAT32) -> str:
    """Return why the op is not equivalent to a product with its weight; empty if it is."""
    dims = shape_of(node.inputs[0])
    if dtype_of(node.inputs[0]) != dtype:
        return f"the dtype is not {dtype.name}"
    if dims is None or len(dims) < 2:
        return "the first factor is not known to be a matrix"
    if node.op == "MatMul":
        return ""
    # References to attributes of a function do not equal these values either.
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    if any(attribute_of(node, name, value) != value for name, value in plain.items()):
        return "the product is scaled or transposed"
    bias = input_of(node, 2)
    is_row = bias is None or shape_of(bias) == (outputs,)
    return "" if is_row else "the bias must be a row with one value per output"
