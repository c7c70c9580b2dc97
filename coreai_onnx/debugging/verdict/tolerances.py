"""Tolerances of a comparison, by dtype."""

from __future__ import annotations

from collections.abc import Mapping

Tolerance = tuple[float, float]
"""(relative, absolute): ``|actual - expected| <= absolute + relative * |expected|``."""

DEFAULT_TOLERANCES: Mapping[str, Tolerance] = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
"""The defaults of ``torch.testing.assert_close``; other dtypes must be equal."""

Tolerances = Tolerance | Mapping[str, Tolerance] | None
"""One tolerance for all outputs, tolerances by output or dtype name, or None for the defaults."""


def tolerance_of(output: str, dtype: str, chosen: Tolerances) -> Tolerance:
    """Return the tolerance of an output: chosen by its name, by its dtype, or the default."""
    if isinstance(chosen, tuple):
        return chosen
    default = DEFAULT_TOLERANCES.get(dtype, (0.0, 0.0))
    chosen = chosen or {}
    return chosen.get(output, chosen.get(dtype, default))
