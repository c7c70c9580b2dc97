"""Recognizes block-quantized weights: integers times scales, one scale per block."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coreai_onnx.model.packed_codes import pack_codes
from coreai_onnx.passes.analysis.constant_expressions import ConstantExpression, constant_expression
from coreai_onnx.passes.analysis.linear_quantization import holds_integers
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    attribute_of,
    behind_views,
    dtype_of,
    input_of,
    is_standard,
    made_by,
    maker,
    static_shape_of,
)

_FLOAT = np.dtype(np.float32)
_EXACT = 1 << 24
"""Integers below this limit, and their sums here, are exact in float32."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix ``(steps - zeros) * scales``.

    Attributes:
        steps: The quantized integers, in the order of the matrix.
        shape: The shape of the matrix.
        axis: The axis along which the elements of a block are consecutive.
        block: The number of elements that share a scale; the last block of a row may be shorter.
        scales: In float32, one per block, in the layout before ``per_block``.
        zeros: The zero points, one per block, in the layout after ``per_block``.
        form: The shape to which scales are broadcast.
    """

    steps: ConstantExpression
    shape: tuple[int, int]
    axis: int
    block: int
    scales: ConstantExpression
    zeros: np.ndarray
    form: tuple[int, ...]

    def limits(self) -> tuple[int, int] | None:
        """Return the minimum and maximum of steps and zero points; None if runtimes may differ."""
        steps = self.steps.values()
        if steps is None:
            return None
        if steps.dtype.kind not in "iu":  # 4-bit dtypes, which numpy does not compare
            steps = steps.astype(np.int8)
        low, high = int(steps.min()), int(steps.max())
        return min(low, int(self.zeros.min())), max(high, int(self.zeros.max()))

    def by_rows(self, values: np.ndarray) -> np.ndarray:
        """Return values in the layout of the matrix with a block along the last axis."""
        return values if self.axis else values.T

    def per_block(self, values: np.ndarray) -> np.ndarray:
        """Return numbers in the layout of the matrix, one for each block."""
        return _per_block(values, self.form, self.shape, self.axis)


@dataclass(frozen=True)
class CodedWeight:
    """A weight as products of few bits read it: one row per output, codes from 0 on.

    Attributes:
        weight: The quantized weight.
        outputs: Number of rows.
        inputs: Number of columns.
        bits: Size of a code.
        block: Number of columns that share a scale; it divides the block of the weight.
        lowest: The quantized value with code 0.
    """

    weight: QuantizedWeight
    outputs: int
    inputs: int
    bits: int
    block: int
    lowest: int

    @property
    def blocks(self) -> int:
        """The number of blocks in a row."""
        return -(-self.inputs // self.block)

    def codes(self, *sources: np.ndarray) -> np.ndarray:
        """Return the packed codes, ``[outputs, blocks, bytes]``."""
        # In int16, since an int8 minus the lowest value, such as -128, does not fit into int8.
        steps = self.weight.steps(*sources).astype(np.int16).reshape(self.weight.shape)
        # The ops read whole blocks; they ignore what is after the last column.
        codes = np.zeros((self.outputs, self.blocks * self.block), np.uint8)
        codes[:, : self.inputs] = self.weight.by_rows(steps) - self.lowest
        return pack_codes(codes.reshape(self.outputs, self.blocks, -1), self.bits)

    def scales(self, *sources: np.ndarray) -> np.ndarray:
        """Return the scales, ``[outputs, blocks]``."""
        return self._split(self.weight.per_block(self.weight.scales(*sources)))

    def zeros(self) -> np.ndarray | None:
        """Return the codes of the zero points, ``[outputs, blocks]``; None if all are the middle.

        The middle, 8 of 4 bits, is the default of the ops.
        """
        zeros = self._split(self.weight.zeros) - self.lowest
        return None if np.all(zeros == 1 << self.bits - 1) else zeros.astype(np.uint8, order="C")

    def _split(self, values: np.ndarray) -> np.ndarray:
        """Repeat the values of each block of the weight for the smaller blocks of the op."""
        return np.repeat(self.weight.by_rows(values), self.weight.block // self.block, axis=1)

    def tensors(
        self, edit: Edit, unit: str, stored: Callable[[np.ndarray], np.ndarray]
    ) -> list[gs.Tensor]:
        """Return codes, scales and, unless they are the default, zero points.

        Args:
            edit: The edit of the graph.
            unit: The name of the scales says that there is one per unit.
            stored: Returns zero points in the form that the op reads.
        """
        steps, scales = self.weight.steps, self.weight.scales
        size, width = [self.outputs, self.blocks], self.block * self.bits // 8
        first, second = (parts.constants[0].name for parts in (steps, scales))
        tensors: list[gs.Tensor] = [
            edit.lazy(
                f"{first}.{self.bits}_bits",
                self.codes,
                steps.constants,
                [*size, width],
                np.dtype(np.uint8),
            ),
            edit.lazy(f"{second}.{unit}", self.scales, scales.constants, size, _FLOAT),
        ]
        zeros = self.zeros()
        if zeros is not None:
            tensors.append(edit.constant(f"{first}.zero_points", stored(zeros)))
        return tensors


def quantized_weight(tensor: gs.Tensor) -> QuantizedWeight | None:
    """Return the parts of a quantized matrix; None if it is not one, or not constant.

    Matches ``DequantizeLinear``, and ``(steps - zeros) * scales`` in single nodes, as models write
    it that store 4-bit values in integers, packed or not.
    """
    shape = static_shape_of(tensor)
    if shape is None or len(shape) != 2 or dtype_of(tensor) != _FLOAT or not math.prod(shape):
        return None
    linear = made_by(tensor, "DequantizeLinear")
    if linear is not None:
        return _linear(linear, (shape[0], shape[1]))
    product = made_by(behind_views(tensor), "Mul")
    return None if product is None else _product(product, (shape[0], shape[1]))


def _linear(node: gs.Node, shape: tuple[int, int]) -> QuantizedWeight | None:
    steps, scales, form = (
        *map(constant_expression, node.inputs[:2]),
        static_shape_of(node.inputs[1]),
    )
    if steps is None or scales is None or not form or dtype_of(node.inputs[1]) != _FLOAT:
        return None
    axis, block = attribute_of(node, "axis", 1) % 2, attribute_of(node, "block_size", 0)
    if not block:  # one scale for each row or column
        axis, block = 1 - axis, shape[1 - axis]
    # The last block of a row may be shorter, so the number of blocks is rounded up.
    if math.prod(form) != -(-shape[axis] // block) * shape[1 - axis]:
        return None
    zero_points = input_of(node, 2)
    zeros = np.zeros(form, np.int64) if zero_points is None else _whole(zero_points)
    if zeros is None:
        return None
    zeros = _per_block(zeros, form, shape, axis)
    return QuantizedWeight(steps, shape, axis, block, scales, zeros, form)


def _product(node: gs.Node, shape: tuple[int, int]) -> QuantizedWeight | None:
    """Match ``(steps - zeros) * scales`` where each op is a node, perhaps under reshapes."""
    full = static_shape_of(node.outputs[0])
    if full is None or len(node.inputs) != 2:
        return None
    for centered, scale in (node.inputs, node.inputs[::-1]):
        scales, form = constant_expression(scale), static_shape_of(scale)
        # As many scales as steps are a product of two matrices, not a quantization.
        if scales is None or form is None or math.prod(form) >= math.prod(full):
            continue
        parts = _centered(centered, full)
        if parts is None:
            continue
        steps, zeros = parts
        return _blocks(steps, scales, zeros, np.broadcast_shapes(form, zeros.shape), full, shape)
    return None


def _blocks(
    steps: ConstantExpression,
    scales: ConstantExpression,
    zeros: np.ndarray,
    form: tuple[int, ...],
    full: tuple[int, ...],
    shape: tuple[int, int],
) -> QuantizedWeight | None:
    """Find the axis of the elements that share a scale and a zero point, also through a view.

    Args:
        steps: The steps.
        scales: The scales.
        zeros: The zero points.
        form: The shape to which scales and zero points are broadcast.
        full: The shape of the steps.
        shape: The shape of the matrix after the view.
    """
    form = (1,) * (len(full) - len(form)) + form
    if len(full) < 2:
        return None
    # The elements of a block are the last axis of the steps, or the one before it: a view that
    # flattens the blocks keeps them side by side only there.
    if form[-1] == 1 and shape[1] % full[-1] == 0:
        axis, block, scales_form = 1, full[-1], (*full[:-1], 1)
    elif form[-2] == 1 and shape[1] == full[-1] and shape[0] % full[-2] == 0:
        axis, block, scales_form = 0, full[-2], (*full[:-2], 1, full[-1])
    else:
        return None
    zeros = _per_block(zeros, scales_form, shape, axis)
    return QuantizedWeight(steps, shape, axis, block, scales, zeros, scales_form)


def _per_block(
    values: np.ndarray, form: tuple[int, ...], shape: tuple[int, int], axis: int
) -> np.ndarray:
    whole = np.broadcast_to(values, form)
    return whole.reshape((shape[0], -1) if axis else (-1, shape[1]))


def _centered(
    tensor: gs.Tensor, full: tuple[int, ...]
) -> tuple[ConstantExpression, np.ndarray] | None:
    """Return steps of the shape ``full``, and the sum of everything subtracted from them."""
    zeros = np.zeros((), np.int64)
    while (node := maker(tensor)) is not None:
        if is_standard(node, "Cast") and _keeps_steps(node):
            tensor = node.inputs[0]
            continue
        difference = _subtracted(node, math.prod(full)) if _is_signed(tensor) else None
        if difference is None:
            break
        tensor, zero = difference
        zeros = zeros + zero
    steps = constant_expression(tensor)
    if steps is None or not holds_integers(dtype_of(tensor)) or static_shape_of(tensor) != full:
        return None
    return steps, zeros


def _subtracted(node: gs.Node, size: int) -> tuple[gs.Tensor, np.ndarray] | None:
    """Return a tensor, and the constant of fewer than ``size`` elements subtracted from it."""
    if not is_standard(node, "Add", "Sub"):
        return None
    for whole, part in (node.inputs, node.inputs[::-1]):
        shape = static_shape_of(part)
        # The operand of full size holds the steps; reading it here would load the weight.
        zero = _whole(part) if shape is not None and math.prod(shape) < size else None
        if zero is not None:
            return whole, zero if node.op == "Sub" else -zero
        # A difference has its zero points on the right.
        if node.op == "Sub":
            break
    return None


def _keeps_steps(cast: gs.Node) -> bool:
    """Whether a cast keeps every integer of few bits."""
    source, target = dtype_of(cast.inputs[0]), dtype_of(cast.outputs[0])
    if source is None or target is None or not holds_integers(source):
        return False
    return target == _FLOAT or (target.kind == "i" and target.itemsize > source.itemsize)


def _is_signed(tensor: gs.Tensor) -> bool:
    """Whether differences of small integers do not wrap around."""
    dtype = dtype_of(tensor)
    return dtype is not None and (dtype == _FLOAT or dtype.kind == "i")


def _whole(tensor: gs.Tensor) -> np.ndarray | None:
    """Return the values of a constant if all are integers."""
    expression = constant_expression(tensor)
    values = None if expression is None else expression.values()
    if values is None:
        return None
    wide = np.asarray(values).astype(np.float64)
    if not np.all((wide == np.rint(wide)) & (np.abs(wide) < _EXACT)):
        return None
    return wide.astype(np.int64)
