"""Constants in 16 bits, and those whose values 16 bits cannot hold."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

DTYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
LIMIT = 65504.0
"""The largest finite float16."""
FILL = 1e9
"""Constants from this magnitude on mean infinity, as in masks, and are clamped."""
_WORST = 2.0**-10
"""Relative error that rounding may cause; that of numbers in float16's normal range is 2**-12."""


def fault(tensor: ir.TensorProtocol, dtype: ir.DataType) -> str:
    """Return why a float32 constant cannot have 16 bits; empty if it can.

    Args:
        tensor: The constant.
        dtype: ``FLOAT16`` or ``BFLOAT16``, which has float32's range.
    """
    if dtype == ir.DataType.BFLOAT16:
        return ""
    values = np.asarray(tensor.numpy())
    sizes = np.abs(values[np.isfinite(values)])
    if ((sizes > LIMIT) & (sizes < FILL)).any():
        return f"the constant {sizes[sizes < FILL].max():.3g} exceeds float16's largest, 65504"
    small = sizes[sizes <= LIMIT].astype(np.float64)
    error = np.square(small - small.astype(np.float16)).sum()
    if error > _WORST**2 * np.square(small).sum():
        return f"the constant {small.max():.3g} is below float16's normal numbers"
    return ""


def is_fill(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant has finite values that mean infinity."""
    values = np.asarray(tensor.numpy())
    return bool((np.isfinite(values) & (np.abs(values) >= FILL)).any())


def narrowed(tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """Return a constant in 16 bits, converted when it is read; finite values stay finite."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.LazyTensor(
        lambda: ir.tensor(_converted(np.asarray(tensor.numpy()), dtype), dtype=dtype, name=name),
        dtype=dtype,
        shape=shape,
        name=name,
    )


def _converted(values: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    largest = float(ml_dtypes.finfo(dtype.numpy()).max)
    clamped = np.where(np.isfinite(values), np.clip(values, -largest, largest), values)
    return np.asarray(clamped.astype(dtype.numpy()))
