"""Versions of torch that this package is tested with."""

from __future__ import annotations

import warnings

import torch

from coreai_onnx.errors import TorchVersionError

TESTED = ("2.12", "2.13", "2.15")
"""Minor releases of torch that the tests of docs/torch_versions.md have passed with."""


def warn_if_untested(version: str) -> None:
    """Warn once per process about a version of torch that the package is not tested with.

    Args:
        version: ``torch.__version__``, ``"2.13.0+cpu"``.
    """
    if not version.startswith(tuple(f"{minor}." for minor in TESTED)):
        warnings.warn(
            f"coreai_onnx is tested with torch {_tested()}, this is torch {version}; "
            "compare the result with torch (coreai_onnx.compare) before you rely on it",
            UserWarning,
            stacklevel=2,
        )


def lacks(what: str) -> TorchVersionError:
    """Return the error for a torch that lacks a name that this package needs.

    Args:
        what: Python's message about what is missing.
    """
    return TorchVersionError(
        f"torch {torch.__version__} lacks something that coreai_onnx needs: {what}\n"
        f"  coreai_onnx is tested with torch {_tested()}; install one of these"
    )


def _tested() -> str:
    return f"{', '.join(TESTED[:-1])} and {TESTED[-1]}"
