"""The example of a backend in docs: its Python file, and its library, compiled."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rules.tree import REPO

EXAMPLE = REPO / "docs" / "examples" / "backend"
HEADERS = "build/*/debian-headers/usr/include/onnxruntime/onnxruntime_cxx_api.h"


def tiny_library(folder: Path) -> Path:
    """Compile the library of the backend ``tiny``, as docs/delegation.md does."""
    found = next(iter(sorted(REPO.glob(HEADERS))), None)
    if found is None or shutil.which("c++") is None:
        pytest.skip("no C++ compiler, or no onnxruntime headers: make build")
    library = folder / "libtiny_ops.so"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-I", found.parent]
    subprocess.run(["c++", *flags, EXAMPLE / "tiny_ops.cc", "-o", library], check=True)
    return library


def tiny_backend():
    """Run the Python file of the backend, which registers it; return its partitioner."""
    return runpy.run_path(str(EXAMPLE / "tiny_backend.py"))["TINY"]
