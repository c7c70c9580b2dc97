from __future__ import annotations

import importlib
from pathlib import Path

from coreai_onnx.passes import order as module
from coreai_onnx.passes.order import (
    CONTRIB,
    CUDA,
    DETERMINISTIC,
    DEVICE,
    EXACT,
    KERNELS,
    LAYOUT,
    ORDER,
    TILES,
    WEBGPU,
)
from coreai_onnx.passes.runner import name_of

ALL = (
    *(*ORDER, *LAYOUT, *KERNELS, *DETERMINISTIC, *TILES),
    *(*CONTRIB, *DEVICE, *WEBGPU, *EXACT, *CUDA),
)


def test_every_line_says_why() -> None:
    source = Path(module.__file__).read_text(encoding="utf-8")
    lines = source[source.index("ORDER") :].splitlines()  # after the imports
    entries = [
        line
        for line in lines
        if line.startswith("    ") and line.rstrip().split("#")[0].strip().endswith(",")
    ]
    assert len(entries) == len(ALL)
    assert all("  # " in line for line in entries)


def test_every_pass_is_found_by_its_name_and_shows_before_and_after() -> None:
    for one in ALL:
        name = name_of(one)
        assert one.__module__.startswith("coreai_onnx.passes.")
        assert getattr(importlib.import_module(one.__module__), name) is one
        assert "→" in (one.__doc__ or "")
        assert "becomes" in (one.__doc__ or "")
