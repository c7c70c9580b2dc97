"""Which dtype an op is computed in when onnxruntime has no kernel for the one it is given."""

from __future__ import annotations

import functools

import onnx_ir as ir

from coreai_onnx.lower.kernel_dtypes import KERNEL_DTYPES

_NAMES = {ir.DataType.FLOAT: "float", ir.DataType.DOUBLE: "double"}
_D = ir.DataType
# Wider dtypes hold every value of the narrow one; the last resort of float64 is float32, with
# which a stock onnxruntime at least runs the op, and of int64 float64, exact below 2**53.
_WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    _D.BFLOAT16: (_D.FLOAT,),
    _D.DOUBLE: (_D.FLOAT,),
    _D.BOOL: (_D.UINT8, _D.INT32, _D.INT64, _D.FLOAT),
    _D.UINT8: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.INT8: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.INT16: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.UINT16: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.INT32: (_D.INT64, _D.DOUBLE, _D.FLOAT),
    _D.UINT32: (_D.INT64, _D.DOUBLE),
    _D.INT64: (_D.INT32, _D.DOUBLE, _D.FLOAT),
    _D.UINT64: (_D.INT64, _D.DOUBLE),
}
_LOSSY = {(_D.INT64, _D.INT32), (_D.INT64, _D.FLOAT), (_D.INT32, _D.FLOAT), (_D.DOUBLE, _D.FLOAT)}


@functools.cache
def kernel_dtypes(op_type: str, opset: int, variable: str) -> frozenset[str] | None:
    """Return the dtypes onnxruntime's CPU kernels take for a type variable; None if not stated."""
    found: set[str] = set()
    for first, last, variables in KERNEL_DTYPES.get(op_type, ()):
        if first <= opset <= last and variable in variables:
            found |= set(variables[variable].split())
    return frozenset(found) or None


@functools.cache
def compute_dtype(
    op_type: str, opset: int, variable: str, dtype: ir.DataType
) -> ir.DataType | None:
    """Return the dtype to cast to before the op, or None if the op takes ``dtype`` as it is.

    float16 is left alone: onnxruntime itself computes it in float32 where it has no kernel.
    """
    known = kernel_dtypes(op_type, opset, variable)
    if known is None or dtype == ir.DataType.FLOAT16 or _name(dtype) in known:
        return None
    options = [wide for wide in _WIDER.get(dtype, ()) if _name(wide) in known]
    exact = [wide for wide in options if (dtype, wide) not in _LOSSY]
    return next(iter(exact or options), None)


def _name(dtype: ir.DataType) -> str:
    return _NAMES.get(dtype, dtype.name.lower())
