"""Columns of tables as batches of an input: checked, converted, padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from coreai_onnx.errors import InputError, RowError
from coreai_onnx.model.interface import TensorInfo

Array = np.ndarray[Any, Any]
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_OBJECT = np.dtype(object)


@dataclass(frozen=True)
class InputColumn:
    """The values of an input in all rows.

    Attributes:
        info: The input.
        values: One array if all rows have one shape; otherwise an array per row.
        lengths: The length of each row, ``[rows]``; None if it is fixed.
    """

    info: TensorInfo
    values: Any
    lengths: Array | None

    @classmethod
    def of(cls, info: TensorInfo, values: Any) -> InputColumn:
        """Check and convert a column.

        Raises:
            InputError: If it does not fit the input.
        """
        if info.dtype == "string":
            rows = list(values)
            for row, text in enumerate(rows):
                if not isinstance(text, str):
                    what = type(text).__name__
                    raise RowError(row, f"{info} must be a text, got a value of {what}")
            # The lengths of texts only order the rows: `batch` does not pad texts.
            return cls(info, np.array(rows, object), np.array([len(text) for text in rows]))
        if isinstance(values, np.ndarray) and values.dtype != _OBJECT:
            check_shape(info, values.shape[1:], f"rows of {info.name!r}")
            array = _converted(info, values, repr(info.name))
            fixed = array.ndim == 1 or isinstance(info.dims[1], int)
            lengths = None if fixed else np.full(len(array), array.shape[1])
            return cls(info, array, lengths)
        arrays = [_row(info, value, row) for row, value in enumerate(values)]
        if len(info.dims) == 1:
            return cls(info, np.array(arrays, info.numpy_dtype), None)
        return cls(info, arrays, np.array([len(array) for array in arrays]))

    @property
    def is_text(self) -> bool:
        """Whether the input takes strings."""
        return self.info.dtype == "string"

    def batch(self, rows: Array, lengths: Sequence[int], fill: float) -> Array:
        """Return some rows as one array, padded if their lengths may differ.

        Args:
            rows: Their numbers.
            lengths: The lengths to pad to, in increasing order; none for the longest of the rows.
            fill: The value of padding.

        Raises:
            InputError: If a row is too long, or has another shape than the first.
        """
        if self.lengths is None or self.is_text:
            batch: Array = self.values[rows]
            return batch
        longest = int(self.lengths[rows].max())
        fixed = self.info.dims[1]
        allowed = [fixed] if isinstance(fixed, int) else [x for x in lengths if x >= longest]
        length = allowed[0] if allowed else longest
        if longest > length or (lengths and not allowed):
            row = int(rows[self.lengths[rows].argmax()])
            most = length if longest > length else lengths[-1]
            raise RowError(row, f"{self.info} has {longest} elements, more than {most}")
        shape = self.values[int(rows[0])].shape[1:]
        batch = np.full((len(rows), length, *shape), fill, self.info.numpy_dtype)
        for i, row in enumerate(map(int, rows)):
            value = self.values[row]
            if value.shape[1:] != shape:
                raise RowError(
                    row,
                    f"{self.info} has the shape {list(value.shape)}, and another row of the same "
                    f"run {list(self.values[int(rows[0])].shape)}",
                )
            batch[i, : len(value)] = value
        return batch


def _row(info: TensorInfo, value: object, row: int) -> Array:
    array = np.asarray(value)
    if array.dtype == _OBJECT:
        raise RowError(row, f"{info.name!r} must be numbers, got {type(value).__name__}")
    try:
        check_shape(info, array.shape, repr(info.name))
        return _converted(info, array, repr(info.name))
    except InputError as error:
        raise RowError(row, str(error)) from None


def _converted(info: TensorInfo, array: Array, where: str) -> Array:
    dtype = np.dtype(info.numpy_dtype)
    if array.dtype == dtype:
        return array
    check_dtype(info, array.dtype, where)
    converted = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted, array):
        raise InputError(f"{where}: a number does not fit {dtype}")
    return converted


def check_dtype(info: TensorInfo, dtype: np.dtype[Any], where: str) -> None:
    """Check that values can be converted: integers to integers and floats, floats to floats.

    Raises:
        InputError: If they cannot.
    """
    if info.dtype == "string":
        fits = dtype.kind in "OUT"
    elif dtype == _OBJECT:
        fits = True  # lists, which are checked row by row
    else:
        target = np.dtype(info.numpy_dtype)
        # numpy does not order the numbers of ml_dtypes.
        target = np.dtype(np.float16) if target == _BFLOAT16 else target
        fits = np.can_cast(dtype, target, "same_kind")
    if not fits:
        raise InputError(f"{where} has the dtype {dtype}, and the model takes {info}")


def check_shape(info: TensorInfo, shape: Sequence[int], where: str) -> None:
    """Check the shape of a row; an axis of any size, and the first of a list, may differ.

    Raises:
        InputError: If the number of axes or a fixed size differs.
    """
    expected = info.dims[1:]
    pairs = list(zip(expected, shape, strict=False))
    if len(shape) != len(expected) or any(isinstance(w, int) and w != s for w, s in pairs):
        raise InputError(f"{where} has the shape {list(shape)}, and the model takes {info}")
