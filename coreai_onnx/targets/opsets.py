"""Selects the opset of a program, and maps opsets to onnxruntime releases."""

from __future__ import annotations

import re

from coreai_onnx.errors import StagingError

DEFAULT_OPSET = 23
OPSETS = range(18, 27)
"""The opsets that lowerings support."""

_NEWEST_OPSET = {(1, 18): 21, (1, 21): 22, (1, 23): 23, (1, 24): 25, (1, 25): 26}
"""The first onnxruntime release that supports an opset and those below it (measured)."""


def newest_opset(onnxruntime: str) -> int:
    """Return the newest opset that an onnxruntime release supports: ``newest_opset("1.22") == 22``.

    Raises:
        StagingError: If the text is not a version, or the release is older than 1.18.
    """
    found = re.match(r"(\d+)\.(\d+)", onnxruntime) if isinstance(onnxruntime, str) else None
    if found is None:
        raise StagingError(f"minimum_onnxruntime must be a version like '1.22', is {onnxruntime!r}")
    release = int(found[1]), int(found[2])
    opsets = [opset for since, opset in _NEWEST_OPSET.items() if since <= release]
    if not opsets:
        raise StagingError(
            f"minimum_onnxruntime {onnxruntime}: the files need onnxruntime 1.18 or later"
        )
    return max(opsets)


def oldest_onnxruntime(opset: int) -> str:
    """Return the oldest onnxruntime release that supports an opset: ``"1.21"`` for 22."""
    major, minor = min(since for since, newest in _NEWEST_OPSET.items() if newest >= opset)
    return f"{major}.{minor}"


def chosen_opset(opset_version: int | None, minimum_onnxruntime: str | None) -> int:
    """Return the opset to lower at.

    Args:
        opset_version: The requested opset; None selects 23, or less for an older onnxruntime.
        minimum_onnxruntime: The oldest onnxruntime that must run the file; None for any.

    Raises:
        StagingError: If the opset is not 18 to 26, or that onnxruntime does not support it.
    """
    if opset_version is not None and opset_version not in OPSETS:
        raise StagingError(f"opset_version must be 18 to 26, is {opset_version}")
    if minimum_onnxruntime is None:
        return DEFAULT_OPSET if opset_version is None else opset_version
    newest = newest_opset(minimum_onnxruntime)
    if opset_version is None:
        return min(DEFAULT_OPSET, newest)
    if opset_version > newest:
        raise StagingError(
            f"opset {opset_version} needs onnxruntime {oldest_onnxruntime(opset_version)}, but "
            f"minimum_onnxruntime is {minimum_onnxruntime}, which takes opset {newest}\n"
            "  leave one of the two out"
        )
    return opset_version
