"""Window functions for signal processing, computed by torch at conversion."""

from __future__ import annotations

from collections.abc import Callable

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.lower.walk.registry import lowers


def _register(name: str, *overloads: str) -> None:
    """Register a window by its torch function; an overload has some of its parameters."""
    window: Callable[..., torch.Tensor] = getattr(torch, name)

    @lowers(*(f"aten.{name}.{overload}" for overload in ("default", "periodic", *overloads)))
    def lower(
        op: OpBuilder,
        window_length: int,
        *,
        periodic: bool = True,
        alpha: float | None = None,
        beta: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> Value:
        shape = [x for x in (alpha, beta) if x is not None]
        return op.const(window(window_length, periodic, *shape, dtype=dtype))


_register("bartlett_window")
_register("blackman_window")
_register("hamming_window", "periodic_alpha", "periodic_alpha_beta")
_register("hann_window")
_register("kaiser_window", "beta")
