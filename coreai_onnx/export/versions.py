"""Which versions of torch this package is tested with."""

from __future__ import annotations

import warnings

TESTED = ("2.13",)
"""Minor releases of torch that the test suite has passed with."""


def warn_if_untested(version: str) -> None:
    """Warn once per process about a torch that the test suite has not seen.

    Args:
        version: ``torch.__version__``, ``"2.13.0+cpu"``.
    """
    if not version.startswith(tuple(f"{minor}." for minor in TESTED)):
        warnings.warn(
            f"coreai_onnx is tested with torch {' and '.join(TESTED)}, this is torch {version}; "
            "compare the result with torch (coreai_onnx.compare) before you rely on it",
            UserWarning,
            stacklevel=2,
        )
