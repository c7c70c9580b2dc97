"""The one table of tolerances, and the one comparison every test uses.

    assert_close(actual, expected)                               # by dtype
    assert_close(actual, expected, exception="softmax_long")     # a named row of EXCEPTIONS

The defaults are those of ``torch.testing.assert_close``. A row of ``EXCEPTIONS`` is wider (or
narrower) and says why; ``tests/rules/test_tolerances.py`` keeps the reasons and finds unused rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch


@dataclass(frozen=True)
class Tolerance:
    """How far apart two values of one dtype may be: ``|a - e| <= atol + rtol * |e|``."""

    rtol: float
    atol: float
    reason: str = "default of torch.testing for this dtype"


EXACT = Tolerance(0.0, 0.0, "integers, booleans and strings are equal or they are not")

DEFAULTS: dict[str, Tolerance] = {
    "float64": Tolerance(1e-7, 1e-7),
    "float32": Tolerance(1.3e-6, 1e-5),
    "float16": Tolerance(1e-3, 1e-5),
    "bfloat16": Tolerance(1.6e-2, 1e-5),
    "complex128": Tolerance(1e-7, 1e-7),
    "complex64": Tolerance(1.3e-6, 1e-5),
    "complex32": Tolerance(1e-3, 1e-5),
}
"""By dtype name; a dtype that is not here is compared exactly."""

EXCEPTIONS: dict[str, dict[str, Tolerance]] = {
    "gated_delta_chunks": {
        "float32": Tolerance(
            1.3e-6,
            1e-4,
            "torch goes through the sequence in chunks of 64 with a triangular solve, the file "
            "token by token; over 70 tokens both are 2e-4 from the same model in float64",
        ),
    },
    "sweep": {
        dtype: Tolerance(
            rtol,
            atol,
            "over all operators, badly conditioned samples among them, torch and onnxruntime "
            "round intermediates at different places; 16-bit results may differ by two steps",
        )
        for dtype, rtol, atol in (
            ("float64", 1e-3, 1e-3),
            ("float32", 1e-3, 1e-3),
            ("float16", 2e-3, 2e-3),
            ("bfloat16", 1.6e-2, 1.6e-2),
        )
    },
    "quantized_step": {
        "float32": Tolerance(
            1.3e-6,
            2e-2,
            "torch multiplies by the reciprocal of a scale and onnxruntime divides by it, so that "
            "a value between two steps of 8 bits may become the other one, here of up to 2e-2",
        ),
    },
    "webgpu_layer_norm": {
        "float32": Tolerance(
            1.3e-6,
            2e-4,
            "onnxruntime's LayerNormalization on WebGPU computes the variance as the mean of the "
            "squares minus the square of the mean, which cancels: on smooth rows it is 3e-4 from "
            "float64, where the CPU is 3e-6",
        ),
    },
    "half_model": {
        "float16": Tolerance(
            1e-2,
            8e-3,
            "torch rounds every intermediate of a model to float16, onnxruntime computes matrix "
            "products and norms in float32; the roundings that differ add up over the layers",
        ),
        "bfloat16": Tolerance(
            8e-2,
            6.4e-2,
            "the same with three bits less: eight times as wide",
        ),
    },
}
"""``name -> dtype -> Tolerance``; a dtype that a row does not name keeps its default."""


def tolerance(dtype: str, exception: str | None = None) -> Tolerance:
    """Return the tolerance for values of ``dtype`` under a named exception."""
    if exception is not None:
        row = EXCEPTIONS[exception]
        if dtype in row:
            return row[dtype]
    return DEFAULTS.get(dtype, EXACT)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    exception: str | None = None,
    message: str = "",
) -> None:
    """Assert that two arrays agree in dtype, shape and values; NaN equals NaN.

    Args:
        actual: A numpy array (ml_dtypes too), torch tensor, Python number, or a sequence of them.
        expected: The same; a sequence must have the same length.
        exception: Name of a row of ``EXCEPTIONS``.
        message: Put before the report, to say which case failed.

    Raises:
        AssertionError: With both dtypes and shapes, or with the number of wrong elements and the
            worst one by absolute and by relative error.
    """
    __tracebackhide__ = True
    if isinstance(expected, (list, tuple)) or isinstance(actual, (list, tuple)):
        _assert_sequences_close(actual, expected, exception, message)
        return
    a, e = as_numpy(actual), as_numpy(expected)
    prefix = f"{message}: " if message else ""
    if a.dtype != e.dtype:
        raise AssertionError(f"{prefix}dtype {a.dtype}, expected {e.dtype} (shape {e.shape})")
    if a.shape != e.shape:
        raise AssertionError(f"{prefix}shape {a.shape}, expected {e.shape} (dtype {e.dtype})")
    report = difference(a, e, tolerance(e.dtype.name, exception))
    if report:
        raise AssertionError(prefix + report)


def _assert_sequences_close(
    actual: Sequence[Any], expected: Sequence[Any], exception: str | None, message: str
) -> None:
    __tracebackhide__ = True
    prefix = f"{message}: " if message else ""
    for name, value in (("actual", actual), ("expected", expected)):
        if not isinstance(value, (list, tuple)):
            kind = type(value).__name__
            raise AssertionError(f"{prefix}{name} is a {kind}, the other a sequence")
    if len(actual) != len(expected):
        raise AssertionError(f"{prefix}{len(actual)} values, expected {len(expected)}")
    for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, exception=exception, message=f"{prefix}[{index}]")


def as_numpy(value: Any) -> np.ndarray:
    """Return ``value`` as a numpy array of the same dtype (bfloat16 and float8 by ml_dtypes)."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name):
        dtype = np.dtype(getattr(ml_dtypes, name))
        bits = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
        return tensor.view(bits).numpy().view(dtype)
    return tensor.numpy()


def difference(a: np.ndarray, e: np.ndarray, tol: Tolerance) -> str:
    """Say how ``a`` and ``e`` (one dtype, one shape) differ; empty if they are close."""
    if tol.rtol == 0 and tol.atol == 0 and e.dtype.kind in "biuSUOT":
        wrong = a != e
        return "" if not wrong.any() else _exact_report(a, e, wrong)
    wide = np.complex128 if e.dtype.kind == "c" else np.float64
    aw, ew = a.astype(wide), e.astype(wide)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(aw - ew)
        close = (aw == ew) | (np.isnan(aw) & np.isnan(ew))
        close |= np.isfinite(aw) & np.isfinite(ew) & (error <= tol.atol + tol.rtol * np.abs(ew))
        relative = error / np.abs(ew)
    wrong = ~close
    if not wrong.any():
        return ""
    return _float_report(aw, ew, wrong, np.where(wrong, error, 0), relative, tol, e.dtype)


def _exact_report(a: np.ndarray, e: np.ndarray, wrong: np.ndarray) -> str:
    at = tuple(int(i) for i in np.argwhere(np.atleast_1d(wrong))[0])
    first_a, first_e = np.atleast_1d(a)[at], np.atleast_1d(e)[at]
    return (
        f"{int(wrong.sum())} of {e.size} {e.dtype} elements differ; "
        f"first at {list(at)}: {first_a!r}, expected {first_e!r}"
    )


def _float_report(
    a: np.ndarray,
    e: np.ndarray,
    wrong: np.ndarray,
    error: np.ndarray,
    relative: np.ndarray,
    tol: Tolerance,
    dtype: np.dtype,
) -> str:
    flat = np.where(np.isnan(error), np.inf, error).ravel()
    worst = int(flat.argmax())
    at = [int(i) for i in np.unravel_index(worst, np.shape(error))] if np.ndim(error) else []
    worst_relative = float(np.max(np.where(wrong & np.isfinite(relative), relative, 0)))
    lines = [
        f"{int(wrong.sum())} of {e.size} {dtype} elements differ, shape {e.shape}",
        f"  worst at {at}: {a.ravel()[worst]!r}, expected {e.ravel()[worst]!r}",
        f"  absolute {flat[worst]:.3g} (atol {tol.atol:g})",
        f"  relative {worst_relative:.3g} (rtol {tol.rtol:g})",
    ]
    nonfinite = int((~np.isfinite(a)).sum()), int((~np.isfinite(e)).sum())
    if nonfinite[0] != nonfinite[1]:
        lines.append(f"  not finite: {nonfinite[0]} actual, {nonfinite[1]} expected")
    return "\n".join(lines)
