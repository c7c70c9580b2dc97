"""Recognizes values that ``DequantizeLinear`` makes, and how they were quantized; shifts them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    VIEWS,
    attribute_of,
    constant_of,
    dtype_of,
    input_of,
    made_by,
    static_shape_of,
)

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_FEW_BITS = ("int4", "uint4", "int2", "uint2")
HALF_RANGE = 128
"""The difference between a uint8 and the int8 that represents the same value."""


def holds_integers(dtype: np.dtype | None) -> bool:
    """Whether a dtype is known and holds integers."""
    return dtype is not None and (dtype.kind in "iu" or dtype.name in _FEW_BITS)


@dataclass(frozen=True)
class Dequantized:
    """A tensor ``(steps - zero) * scale``.

    Attributes:
        steps: The integers.
        scale: One number, or one per index of ``axis``.
        zero: The zero points, in the shape of ``scale``; None for 0.
        axis: The axis of the scales; None for one number.
    """

    steps: gs.Tensor
    scale: gs.Tensor
    zero: gs.Tensor | None
    axis: int | None


def dequantized(tensor: gs.Tensor) -> Dequantized | None:
    """Return the parts of a tensor that is dequantized from bytes, without blocks; or None."""
    node = made_by(tensor, "DequantizeLinear")
    if node is None or attribute_of(node, "block_size", 0):
        return None
    form = static_shape_of(node.inputs[1])
    if dtype_of(node.inputs[0]) not in BYTES or form is None or len(form) > 1:
        return None
    one = form in {(), (1,)}
    # A vector of one scale stands for one number, whatever the axis says.
    axis = None if one else attribute_of(node, "axis", 1)
    return Dequantized(node.inputs[0], node.inputs[1], input_of(node, 2), axis)


def dequantized_matrix(tensor: gs.Tensor) -> Dequantized | None:
    """Return the parts of a constant matrix that is dequantized from bytes, or None."""
    parts = dequantized(tensor)
    if parts is None or not all(
        part is None or isinstance(part, gs.Constant)
        for part in (parts.steps, parts.scale, parts.zero)
    ):
        return None
    shape = static_shape_of(parts.steps)
    if shape is None or len(shape) != 2:
        return None
    if parts.axis is None:
        return parts
    return Dequantized(parts.steps, parts.scale, parts.zero, parts.axis % 2)


def before_views(tensor: gs.Tensor) -> gs.Tensor:
    """Return the source of a scale or zero point, before views and casts that change no value."""
    while (node := made_by(tensor, "Cast", *VIEWS)) is not None:
        if node.op == "Cast" and not _keeps(dtype_of(node.inputs[0]), dtype_of(tensor)):
            return tensor
        tensor = node.inputs[0]
    return tensor


def _keeps(source: np.dtype | None, target: np.dtype | None) -> bool:
    """Whether a cast is one of those by which torch hands over scales and zero points of bytes."""
    if source is None or target is None:
        return False
    # torch's choose_qparams_per_token_asymmetric has scales in float64, zero points in int64.
    if source in _FLOATS:
        return target in _FLOATS
    return source.kind in "iu" and target.kind in "iu"


def is_zero(zero: gs.Tensor | None) -> bool:
    """Whether zero points are absent or all 0."""
    return zero is None or (isinstance(zero, gs.Constant) and not np.asarray(zero.values).any())


def unsigned(edit: Edit, node: gs.Node, part: gs.Tensor) -> gs.Tensor:
    """Return int8 integers plus 128, as uint8; ``node`` is their first reader."""
    values = constant_of(part)
    if values is not None:
        # An int8 plus 128 does not fit into int8, here and in the nodes below.
        codes = (values.astype(np.int16) + HALF_RANGE).astype(np.uint8)
        return edit.constant(f"{part.name}_u8", codes)
    wide = edit.add("Cast", node, [part], to=onnx.TensorProto.INT32)
    shift = edit.constant("shift", np.array(HALF_RANGE, np.int32))
    total = edit.add("Add", node, [wide, shift])
    return edit.add("Cast", node, [total], np.uint8, part.shape, to=onnx.TensorProto.UINT8)
