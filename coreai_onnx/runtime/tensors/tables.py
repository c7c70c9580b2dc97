"""Tables: mappings of numpy arrays, data frames of pandas, tables of Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coreai_onnx.errors import InputError, RowError
from coreai_onnx.runtime.tensors.columns import Array

RowType = tuple[np.dtype[Any] | None, Sequence[int] | None]
"""Dtype and shape of a row; None for what is not known."""


def _library_of(table: Any) -> str:
    return type(table).__module__.partition(".")[0]


def columns_of(table: Any) -> dict[str, Any]:
    """Return the columns of a table as arrays.

    Raises:
        InputError: If it is none, or a column has nulls.
    """
    if _library_of(table) == "pyarrow":
        return {name: _from_arrow(name, table.column(name)) for name in table.schema.names}
    if _library_of(table) == "pandas":
        return {str(name): table[name].to_numpy() for name in table.columns}
    if isinstance(table, Mapping):
        return dict(table)
    what = type(table).__name__
    raise InputError(f"a table must be a mapping of arrays, of pandas or of Arrow, got {what}")


def _from_arrow(name: str, column: Any) -> Array:
    import pyarrow as pa

    array = column
    if isinstance(column, pa.ChunkedArray):
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if array.null_count:
        row = next(i for i, value in enumerate(array) if not value.is_valid)
        raise RowError(row, f"the column {name!r} is null")
    shape = [len(array)]
    if isinstance(array, pa.FixedShapeTensorArray):
        shape += array.type.shape
        array = array.storage.flatten()
    while pa.types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
    values: Array = array.to_numpy(zero_copy_only=False).reshape(shape)
    return values


def types_of(schema: Any) -> dict[str, RowType]:
    """Return the type of each column.

    Args:
        schema: A table, a schema of Arrow or Ray, or dtypes of columns by name.

    Raises:
        InputError: If it is none of these.
    """
    if hasattr(schema, "names") and hasattr(schema, "types"):  # of Arrow or Ray
        return {n: _arrow_type(t) for n, t in zip(schema.names, schema.types, strict=True)}
    if _library_of(schema) == "pyarrow":
        return types_of(schema.schema)
    if _library_of(schema) == "pandas":
        return {str(name): (schema[name].to_numpy().dtype, None) for name in schema.columns}
    if not isinstance(schema, Mapping):
        raise InputError(f"a {type(schema).__name__} is neither a table nor a schema")
    return {name: _array_type(value) for name, value in schema.items()}


def _array_type(value: object) -> RowType:
    if not isinstance(value, np.ndarray):
        return np.dtype(value), None  # type: ignore[call-overload]  # any name of a dtype
    return value.dtype, None if value.dtype.kind == "O" else value.shape[1:]


def _arrow_type(kind: Any) -> RowType:
    import pyarrow as pa

    if not isinstance(kind, pa.DataType):
        return None, None
    shape: list[int] = []
    if isinstance(kind, pa.FixedShapeTensorType):
        shape, kind = list(kind.shape), kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return np.dtype(object), None
    try:
        return np.dtype(kind.to_pandas_dtype()), shape
    except NotImplementedError:
        return None, None


def with_columns(table: Any, keep: Sequence[str] | None, results: Mapping[str, Array]) -> Any:
    """Return a table of the same kind with further columns.

    Args:
        table: The table.
        keep: The columns of it to keep; None keeps all.
        results: The columns to add, by name.
    """
    if _library_of(table) == "pyarrow":
        columns = {n: table.column(n) for n in (table.schema.names if keep is None else keep)}
        added = {name: _to_arrow(array) for name, array in results.items()}
        return type(table).from_arrays([*columns.values(), *added.values()], [*columns, *added])
    if _library_of(table) == "pandas":
        kept = table if keep is None else table[list(keep)]
        return kept.assign(**{name: x if x.ndim == 1 else list(x) for name, x in results.items()})
    kept = dict(table) if keep is None else {name: table[name] for name in keep}
    return {**kept, **results}


def _to_arrow(array: Array) -> Any:
    import pyarrow as pa

    if array.dtype.kind == "O":
        return pa.array([x if isinstance(x, str) else x.tolist() for x in array])
    if array.dtype.kind == "V":  # of ml_dtypes, which Arrow does not have
        array = array.astype(np.float32)
    flat = pa.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat
