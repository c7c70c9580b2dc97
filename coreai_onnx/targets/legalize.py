"""Legalizes ops for onnxruntime: dtypes that have kernels, and non-negative axes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from coreai_onnx.model.standard.op_schemas import schema_of
from coreai_onnx.targets.kernel_dtypes import KERNEL_DTYPES
from coreai_onnx.targets.releases import OLDEST, SINCE, Release

_D = ir.DataType
# Wider dtypes hold every value of the narrow one. The last resort for float64 is float32, with
# which a stock onnxruntime at least runs the op; for int64 it is float64, exact below 2**53.
_WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    _D.BFLOAT16: (_D.FLOAT,),
    _D.DOUBLE: (_D.FLOAT,),
    _D.BOOL: (_D.UINT8, _D.INT32, _D.INT64, _D.FLOAT),
    _D.UINT8: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.INT8: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.INT16: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.UINT16: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.FLOAT16: (_D.FLOAT, _D.DOUBLE),
    _D.INT32: (_D.INT64, _D.DOUBLE, _D.FLOAT),
    _D.UINT32: (_D.INT64, _D.DOUBLE),
    _D.INT64: (_D.INT32, _D.DOUBLE, _D.FLOAT),
    _D.UINT64: (_D.INT64, _D.DOUBLE),
}
# Casts that may round or overflow, chosen only where no exact one leads to a kernel.
_LOSSY = {(_D.INT64, _D.INT32), (_D.INT64, _D.FLOAT), (_D.INT32, _D.FLOAT), (_D.DOUBLE, _D.FLOAT)}


@functools.cache
def kernel_dtypes(op_type: str, opset: int, variable: str) -> frozenset[str] | None:
    """Return the dtypes of a type variable that onnxruntime's CPU kernels take; None if unknown."""
    dtypes: set[str] = set()
    for first, last, variables in KERNEL_DTYPES.get(op_type, ()):
        if first <= opset <= last and variable in variables:
            dtypes |= set(variables[variable].split())
    # The table has no entry for ops without a CPU kernel and for unknown variables: nothing is cast
    # for these.
    return frozenset(dtypes) or None


@functools.cache
def compute_dtype(
    op_type: str,
    opset: int,
    variable: str,
    dtype: ir.DataType,
    oldest: Release | None = None,
) -> ir.DataType | None:
    """Return the dtype to cast to before the op, or None if the op supports ``dtype``.

    ``oldest`` is the oldest onnxruntime that must have the kernel; None for the newest.

    float16 is cast only if ONNX's op does not have it: onnxruntime itself computes it in float32 if
    it has no kernel.
    """
    dtypes = kernel_dtypes(op_type, opset, variable)
    if dtypes is not None and oldest is not None:
        dtypes = frozenset(d for d in dtypes if SINCE.get(("", op_type, d), OLDEST) <= oldest)
    if dtypes is None or dtype.name.lower() in dtypes:
        return None
    # onnxruntime inserts casts itself where it has no kernel for float16.
    if dtype == ir.DataType.FLOAT16 and _has_float16(op_type, opset, variable):
        return None
    options = [wide for wide in _WIDER.get(dtype, ()) if wide.name.lower() in dtypes]
    exact = [wide for wide in options if (dtype, wide) not in _LOSSY]
    return next(iter(exact or options), None)


def _has_float16(op_type: str, opset: int, variable: str) -> bool:
    schema = schema_of(op_type, opset)
    constraints = () if schema is None else schema.type_constraints
    types = {one.type_param_str: one.allowed_type_strs for one in constraints}
    return "tensor(float16)" in types.get(variable, ("tensor(float16)",))


def axes_from_the_front(
    op_type: str, operands: Sequence[Any], attributes: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the operands and attributes of a node, with non-negative axes for reductions.

    onnxruntime does not reduce an empty tensor over negative axes: a ReduceSum of [0, 3] over -1
    returns [0, 3]. Axes are unchanged if the rank is unknown.
    """
    if not op_type.startswith(("Reduce", "Arg")):
        return operands, attributes
    dims = operands[0].meta.get("dims")
    # Also for a scalar: it has no axes, and a remainder by its rank is an error.
    if not dims:
        return operands, attributes
    rank = len(dims)
    if "axis" in attributes:
        attributes = {**attributes, "axis": attributes["axis"] % rank}
    if len(operands) > 1 and isinstance(operands[1], list | tuple):
        operands = (operands[0], [axis % rank for axis in operands[1]], *operands[2:])
    return operands, attributes
