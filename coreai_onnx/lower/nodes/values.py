"""Dtypes and dims of values, and torch's promotion rules on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import onnx_ir as ir
import sympy
import torch

Value: TypeAlias = ir.Value
Number: TypeAlias = int | float | bool
Dim: TypeAlias = int | sympy.Expr
"""A size: a known integer, or an expression over the program's symbols."""
Dims: TypeAlias = tuple[Dim, ...]


class NoOutput(NamedTuple):
    """Why a value must not be an output of the program, and what the user can do."""

    reason: str
    advice: str


_TORCH_TO_IR: dict[torch.dtype, ir.DataType] = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.int64: ir.DataType.INT64,
    torch.int32: ir.DataType.INT32,
    torch.int16: ir.DataType.INT16,
    torch.int8: ir.DataType.INT8,
    torch.uint8: ir.DataType.UINT8,
    torch.uint16: ir.DataType.UINT16,
    torch.uint32: ir.DataType.UINT32,
    torch.uint64: ir.DataType.UINT64,
    torch.bool: ir.DataType.BOOL,
    torch.complex64: ir.DataType.COMPLEX64,
    torch.complex128: ir.DataType.COMPLEX128,
    torch.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: ir.DataType.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: ir.DataType.FLOAT8E5M2,
    torch.float8_e5m2fnuz: ir.DataType.FLOAT8E5M2FNUZ,
}
# Not in the table: onnxruntime lacks E8M0, so values are float32 with a mark.
POWERS = torch.float8_e8m0fnu
_IR_TO_TORCH = {ir_dtype: torch_dtype for torch_dtype, ir_dtype in _TORCH_TO_IR.items()}
_REAL_PART = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
_COMPLEX = {real: whole for whole, real in _REAL_PART.items()}


def ir_dtype(dtype: torch.dtype) -> ir.DataType:
    """Return the ONNX dtype of a torch dtype.

    Raises:
        ValueError: If ONNX has no such dtype.
    """
    if dtype not in _TORCH_TO_IR:
        raise ValueError(f"ONNX has no dtype for {dtype}")
    return _TORCH_TO_IR[dtype]


def stored_as(tensor: torch.Tensor) -> torch.Tensor:
    """Return a constant as a file holds it.

    Complex numbers are pairs. Numbers E8M0, which onnxruntime lacks, are float32. Dtypes of fewer
    than 8 bits, which torch keeps in bytes and can only view as bytes, are uint8.
    """
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    if tensor.dtype == POWERS:
        return tensor.float()
    if tensor.dtype not in _TORCH_TO_IR and tensor.element_size() == 1:
        return tensor.view(torch.uint8)
    return tensor


def has_torch_dtype(dtype: ir.DataType) -> bool:
    """Whether torch has an ONNX dtype."""
    return dtype in _IR_TO_TORCH


def torch_dtype(dtype: ir.DataType) -> torch.dtype:
    """Return the torch dtype of an ONNX dtype."""
    return _IR_TO_TORCH[dtype]


def real_part(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the real part of a complex dtype, with which ONNX represents it."""
    return _REAL_PART.get(dtype, dtype)


def ir_dtype_of(x: Value) -> ir.DataType:
    """Return the ONNX dtype of a value, that of the parts for a complex value.

    Raises:
        ValueError: If the dtype is unknown.
    """
    if x.dtype is None:
        raise ValueError(f"value {x.name} has no dtype")
    return x.dtype


def dtype_of(x: Value) -> torch.dtype:
    """Return the torch dtype of a value, complex for a complex value."""
    dtype = torch_dtype(ir_dtype_of(x))
    if is_complex(x):
        # torch has no complex dtype of bfloat16 parts.
        return _COMPLEX.get(dtype, torch.complex64)
    return dtype


def is_complex(x: object) -> bool:
    """Whether a value represents a complex tensor (a real one with a trailing axis of 2)."""
    return isinstance(x, ir.Value) and bool(x.meta.get("complex"))


def mark_complex(x: Value) -> Value:
    """Record that a value with a trailing axis of 2 represents a complex tensor, and return it."""
    x.meta["complex"] = True
    return x


def is_powers(x: Value) -> bool:
    """Whether a float32 value represents numbers E8M0: powers of two."""
    return bool(x.meta.get("powers"))


def mark_powers(x: Value) -> Value:
    """Record that a float32 value represents numbers E8M0, and return it."""
    x.meta["powers"] = True
    return x


def complex_like(x: Value, like: Value) -> Value:
    """Mark ``x`` as complex if ``like`` is, and return it."""
    return mark_complex(x) if is_complex(like) else x


def forbid_output(x: Value, reason: str, advice: str) -> None:
    """Record why a value must not be an output of the program, and what the user can do."""
    x.meta["no_output"] = NoOutput(reason, advice)


def no_output(x: Value) -> NoOutput | None:
    """Return why a value must not be an output of the program; None if it may be one."""
    reason: NoOutput | None = x.meta.get("no_output")
    return reason


def is_bool(x: Value) -> bool:
    """Whether a value is boolean."""
    return x.dtype == ir.DataType.BOOL


def is_float(x: Value) -> bool:
    """Whether a value is floating."""
    return dtype_of(x).is_floating_point


def is_integer(x: Value) -> bool:
    """Whether a value is an integer and not a boolean."""
    dtype = dtype_of(x)
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def set_dims(x: Value, dims: Sequence[Dim]) -> Value:
    """Record the dims of a value, symbolic ones included, and return it."""
    x.meta["dims"] = tuple(dims)
    # ONNX stores symbolic dims as text; meta keeps the expressions.
    x.shape = ir.Shape([d if isinstance(d, int) else str(d) for d in dims])
    return x


def dims_of(x: Value) -> Dims:
    """Return the dims of a value (without the trailing 2 of a complex one).

    Raises:
        ValueError: If the value's shape is unknown.
    """
    dims = maybe_dims(x)
    if dims is None:
        raise ValueError(f"value {x.name} has no known shape")
    return dims


def maybe_dims(x: Value) -> Dims | None:
    """Return the dims of a value, or None if they are unknown."""
    dims: Dims | None = x.meta.get("dims")
    if dims is not None and is_complex(x):
        return dims[:-1]
    return dims


def rank_of(x: Value) -> int:
    """Return the rank of a value."""
    return len(dims_of(x))


def is_static(dims: Sequence[Dim]) -> bool:
    """Whether every dim is a known integer."""
    return all(isinstance(d, int) for d in dims)


def numel(dims: Sequence[Dim]) -> Dim:
    """Return the product of the dims."""
    result: Dim = 1
    for d in dims:
        result = result * d
    return as_dim(result)


def as_dim(x: object) -> Dim:
    """Return a Python or torch integer, or an expression, as a dim."""
    if isinstance(x, torch.SymInt):
        x = x.node.expr
    if isinstance(x, sympy.Expr):
        return int(x) if x.is_Integer else x
    # int() also makes a number of a bool, which is an instance of int.
    if isinstance(x, int):
        return int(x)
    raise TypeError(f"not a dim: {x!r}")


def wrap(axis: int, rank: int) -> int:
    """Return a non-negative axis; a 0-d tensor has the axes 0 and -1, as in torch."""
    return axis % max(rank, 1)


def wrap_all(axes: Sequence[int] | int | None, rank: int) -> list[int]:
    """Return non-negative axes in ascending order; None or an empty list means all axes."""
    if axes is None or (isinstance(axes, Sequence) and len(axes) == 0):
        return list(range(rank))
    listed = [axes] if isinstance(axes, int) else axes
    return sorted(wrap(a, rank) for a in listed) if rank else []


def category(dtype: torch.dtype) -> int:
    """Return torch's promotion category: bool 0, integer 1, floating 2, complex 3."""
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


def is_condition(x: object) -> bool:
    """Whether a symbolic value is a condition; for sympy, symbols are booleans too."""
    return isinstance(x, sympy.logic.boolalg.Boolean) and not isinstance(x, sympy.Expr)


def scalar_dtype(x: object) -> torch.dtype:
    """Return torch's dtype for a Python (or symbolic) number."""
    if isinstance(x, bool) or is_condition(x):
        return torch.bool
    if isinstance(x, int) or (isinstance(x, sympy.Expr) and x.is_integer):
        return torch.int64
    if isinstance(x, complex):
        return torch.complex64 if torch.get_default_dtype() == torch.float32 else torch.complex128
    return torch.get_default_dtype()


def promoted_dtype(*operands: object) -> torch.dtype:
    """Return torch's result type of tensors and numbers.

    Within a category (bool < integer < floating < complex), tensors with axes take precedence over
    0-d tensors, and those over Python numbers. A higher category always takes precedence.
    """
    levels: list[list[torch.dtype]] = [[], [], []]
    for x in operands:
        if isinstance(x, ir.Value):
            dims = maybe_dims(x)
            # A value of unknown rank counts as a tensor with axes.
            levels[1 if dims == () else 0].append(dtype_of(x))
        elif x is not None:
            levels[2].append(scalar_dtype(x))
    result: torch.dtype | None = None
    for level in levels:
        joined: torch.dtype | None = None
        for dtype in level:
            joined = dtype if joined is None else torch.promote_types(joined, dtype)
        if joined is None:
            continue
        if result is None:
            result = joined
        elif category(joined) > category(result):
            result = _raise_category(result, joined)
    if result is None:
        raise ValueError("no operands to promote")
    return result


def _raise_category(winner: torch.dtype, higher: torch.dtype) -> torch.dtype:
    """Return the result of a tensor dtype and a lower-priority operand of a higher category."""
    if higher.is_complex and winner.is_floating_point:
        # As in torch, the result has the precision of the tensor, not that of the complex number.
        return torch.complex128 if winner == torch.float64 else torch.complex64
    return higher
