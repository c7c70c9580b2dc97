"""Window functions for signal processing, computed by torch at conversion."""

from __future__ import annotations

from collections.abc import Callable

import torch

from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Value
from coreai_onnx.lower.walk.registry import lowers

_WINDOWS: dict[str, Callable[..., torch.Tensor]] = {
    "bartlett_window": torch.bartlett_window,
    "blackman_window": torch.blackman_window,
    "hamming_window": torch.hamming_window,
    "hann_window": torch.hann_window,
    "kaiser_window": torch.kaiser_window,
}
"""Window functions that have the overloads ``default`` and ``periodic``."""


def _register(name: str, make: Callable[..., torch.Tensor]) -> None:
    @lowers(f"aten.{name}.default")
    def window(op: OpBuilder, window_length: int, *, dtype: torch.dtype | None = None) -> Value:
        """The periodic window with a given length."""
        return op.const(make(window_length, dtype=dtype))

    @lowers(f"aten.{name}.periodic")
    def periodic_window(
        op: OpBuilder, window_length: int, *, periodic: bool, dtype: torch.dtype | None = None
    ) -> Value:
        """The window with a given length, periodic or symmetric."""
        return op.const(make(window_length, periodic, dtype=dtype))


for _name, _make in _WINDOWS.items():
    _register(_name, _make)


@lowers("aten.hamming_window.periodic_alpha")
def hamming_alpha(
    op: OpBuilder,
    window_length: int,
    *,
    periodic: bool,
    alpha: float,
    dtype: torch.dtype | None = None,
) -> Value:
    """α - 0.46 cos(2π i / n)."""
    return op.const(torch.hamming_window(window_length, periodic, alpha, dtype=dtype))


@lowers("aten.hamming_window.periodic_alpha_beta")
def hamming_alpha_beta(
    op: OpBuilder,
    window_length: int,
    *,
    periodic: bool,
    alpha: float,
    beta: float,
    dtype: torch.dtype | None = None,
) -> Value:
    """α - β cos(2π i / n)."""
    return op.const(torch.hamming_window(window_length, periodic, alpha, beta, dtype=dtype))


@lowers("aten.kaiser_window.beta")
def kaiser_beta(
    op: OpBuilder,
    window_length: int,
    *,
    periodic: bool,
    beta: float,
    dtype: torch.dtype | None = None,
) -> Value:
    """The Kaiser window with shape parameter β."""
    return op.const(torch.kaiser_window(window_length, periodic, beta, dtype=dtype))
