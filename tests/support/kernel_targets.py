"""The targets of the kernel library, and those that this machine runs."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

OVERRIDE = "COREAI_OPS_TARGET"
_SOURCE = Path(__file__).resolve().parents[2] / "custom_ops" / "simd" / "target.cc"


def all_targets() -> list[str]:
    """Return the names of all targets, from the most basic to the widest."""
    return re.findall(r'^    \{"(\w+)", \w+.*\},', _SOURCE.read_text(), re.MULTILINE)


def chosen_target(library: Path) -> str:
    """Return the target that a session uses now; "unsupported" if the variable names such a one."""
    query = ctypes.CDLL(str(library)).CoreaiOnnxOpsInfo
    query.restype = ctypes.c_char_p
    found = re.search(r" target=(\w+) ", query().decode())
    assert found is not None
    return found[1]


def targets_of_this_machine(library: Path) -> list[str]:
    """Return the targets that the library has kernels for and this CPU and its system can run."""
    before = os.environ.get(OVERRIDE)
    supported = []
    try:
        for name in all_targets():
            os.environ[OVERRIDE] = name
            if chosen_target(library) == name:
                supported.append(name)
    finally:
        os.environ.pop(OVERRIDE)
        if before is not None:
            os.environ[OVERRIDE] = before
    return supported
