"""Releases of onnxruntime, and what each of them introduced.

This is the only file of the package with such numbers (`tests/rules/test_releases.py`).
"""

from __future__ import annotations

import re
from typing import overload

from coreai_onnx.errors import CoreaiError, StagingError, TargetError

Release = tuple[int, int]

OLDEST: Release = (1, 18)
"""The first release with opset 21 and IR version 10, that of the files."""
OLDEST_TESTED: Release = (1, 21)
"""The oldest release that files are tested with (docs/runtimes.md), and the first with the C API
that kernels are compiled with."""
DEVICES: Release = (1, 24)
"""The first release whose Python package lists the devices of execution providers."""
NEWEST_OPSET: dict[Release, int] = {
    OLDEST: 21, OLDEST_TESTED: 22, (1, 23): 23, (1, 24): 25, (1, 25): 26
}  # fmt: skip
"""The newest opset of a release and those after it (measured: tests/compat/test_opsets.py)."""
CONTRIB_SINCE: dict[tuple[str, str], Release] = {
    # Before, 4-bit zero points give wrong results, and 2 bits fail.
    ("GatherBlockQuantized", ""): (1, 27),
    # From input 9 on: position_ids, and the bias of the scores, which a mask becomes.
    ("GroupQueryAttention", "input 9"): (1, 23),
    ("GroupQueryAttention", "causal"): (1, 30),
    # Before, a query attended to one key more than the window has.
    ("GroupQueryAttention", "local_window_size"): (1, 24),
    ("LinearAttention", ""): (1, 25),
    ("MoE", ""): (1, 23),  # with a swiglu
    ("QMoE", ""): (1, 25),
    ("QMoE", "expert_weight_bits=2"): (1, 27),
    ("QMoE", "accuracy_level"): (1, 31),
}
"""The first release that computes an op of ``com.microsoft`` correctly, by its name and form:
``""`` for any, an attribute, its value, or an input. Without an entry, it is `OLDEST_TESTED`.
Measured with 1.21.1, 1.23.2, 1.24.4, 1.25.1, 1.28.0, 1.29.0, 1.30.0 and 1.31.1."""
CONTRIB_SLOW_SINCE: dict[str, Release] = {
    "SkipLayerNormalization": (1, 30),
    "SkipSimplifiedLayerNormalization": (1, 30),
}
"""The first release in which an op is slower than the ops that it replaces, by up to four times
(docs/internals/performance_log.md, Norms)."""


@overload
def release_of(version: str, error: type[CoreaiError] = TargetError) -> Release: ...
@overload
def release_of(version: None, error: type[CoreaiError] = TargetError) -> None: ...
def release_of(version: str | None, error: type[CoreaiError] = TargetError) -> Release | None:
    """Return the release of a ``minimum_onnxruntime``, ``(1, 22)`` for "1.22.1"; None for None.

    Args:
        version: The version.
        error: The error to raise.

    Raises:
        CoreaiError: If it is not a version, or older than 1.18.
    """
    if version is None:
        return None
    # A patch release adds no op and no opset, so two numbers are enough.
    numbers = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    if numbers is None:
        raise error(f"minimum_onnxruntime must be a version like '1.22', got {version!r}")
    release = int(numbers[1]), int(numbers[2])
    if release < OLDEST:
        raise error(f"minimum_onnxruntime must be {text_of(OLDEST)} or later, got {version}")
    return release


def text_of(release: Release) -> str:
    """Return a release as text, ``"1.22"``."""
    return ".".join(map(str, release))


def newest_opset(onnxruntime: str) -> int:
    """Return the newest opset that an onnxruntime release supports: ``newest_opset("1.22") == 22``.

    Raises:
        StagingError: If the text is not a version, or the release is older than 1.18.
    """
    release = release_of(onnxruntime, StagingError)
    return max(opset for since, opset in NEWEST_OPSET.items() if since <= release)


def oldest_onnxruntime(opset: int) -> str:
    """Return the oldest onnxruntime release that supports an opset: ``"1.21"`` for 22."""
    return text_of(min(since for since, newest in NEWEST_OPSET.items() if newest >= opset))
