"""Activations and log-softmax as composites."""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.composite.calls import is_covered
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Value, dtype_of, rank_of, wrap
from coreai_onnx.lower.walk.registry import composes


@composes("aten.gelu.default")
def gelu(op: OpBuilder, self: Value, *, approximate: str = "none") -> Value | None:
    """The composite ``gelu``."""
    return op.composite("gelu", [self], approximate=approximate) if is_covered(self) else None


@composes("aten.silu.default", whole=True)
def silu(op: OpBuilder, self: Value) -> Value | None:
    """The composite ``silu``."""
    return op.composite("silu", [self]) if is_covered(self) else None


@composes("aten.hardsigmoid.default", whole=True)
def hardsigmoid(op: OpBuilder, self: Value) -> Value | None:
    """The composite ``hard_sigmoid``."""
    return op.composite("hard_sigmoid", [self]) if is_covered(self) else None


@composes("aten.hardswish.default", whole=True)
def hardswish(op: OpBuilder, self: Value) -> Value | None:
    """The composite ``hard_swish``."""
    return op.composite("hard_swish", [self]) if is_covered(self) else None


@composes("aten.log_softmax.int")
def log_softmax(
    op: OpBuilder, self: Value, dim: int, dtype: torch.dtype | None = None
) -> Value | None:
    """The composite ``log_softmax``, after a cast if a dtype is given."""
    if rank_of(self) == 0:
        return None
    x = self if dtype is None or dtype == dtype_of(self) else op.cast(self, dtype)
    if not is_covered(x):
        return None
    return op.composite("log_softmax", [x], axis=wrap(dim, rank_of(self)))


@composes("aten.special_log_softmax.default")
def special_log_softmax(
    op: OpBuilder, self: Value, dim: int, *, dtype: torch.dtype | None = None
) -> Value | None:
    """The composite ``log_softmax``, after a cast if a dtype is given."""
    return log_softmax(op, self, dim, dtype)


@composes("aten._log_softmax.default")
def _log_softmax(op: OpBuilder, self: Value, dim: int, half_to_float: bool) -> Value | None:
    """The composite ``log_softmax``, with an optional cast from float16 to float32."""
    return log_softmax(op, self, dim, torch.float32 if half_to_float else None)
