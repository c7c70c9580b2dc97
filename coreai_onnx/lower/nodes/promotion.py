"""Promotes operands to torch's result type."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import sympy
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, promoted_dtype, real_part

_INTEGER = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def promote(op: OpBuilder, *operands: Any, dtype: torch.dtype | None = None) -> list[Value]:
    """Return the operands as values of one dtype.

    Args:
        op: Creates the casts and constants.
        *operands: Values, Python numbers or symbolic numbers.
        dtype: The common dtype; by default torch's result type of the operands.
    """
    target = dtype if dtype is not None else promoted_dtype(*operands)
    return [as_value(op, x, real_part(target)) for x in operands]


def promote_to_float(op: OpBuilder, *operands: Any) -> list[Value]:
    """Like :func:`promote`; integers and booleans become the default floating dtype."""
    target = promoted_dtype(*operands)
    # As in torch, where a true division of integers has the default dtype.
    if not (target.is_floating_point or target.is_complex):
        target = torch.get_default_dtype()
    return promote(op, *operands, dtype=target)


def as_value(op: OpBuilder, x: Any, dtype: torch.dtype) -> Value:
    """Return an operand as a value of a dtype."""
    if isinstance(x, ir.Value):
        return op.cast(x, dtype)
    if isinstance(x, sympy.Basic):
        return op.cast(op.dim(x), dtype)
    if isinstance(x, int) and dtype in _INTEGER:
        return op.const(torch.tensor(x).to(dtype))  # wraps around, as torch does
    return op.const(x, dtype)
