"""A torch operator library, and the onnxruntime library that implements its operators."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from coreai_onnx import TorchConverter

_HERE = Path(__file__).parent
_HEADERS = "build/*/debian-headers/usr/include/onnxruntime"


@cache
def library() -> Path:
    """Return the runtime library, compiled once in a process; skip the test without a compiler."""
    headers = next(iter(sorted(_HERE.parents[1].glob(_HEADERS))), None)
    compiler = os.environ.get("CXX", "c++")
    if headers is None or shutil.which(compiler) is None:
        pytest.skip("no C++ compiler, or no onnxruntime headers: make build")
    path = Path(tempfile.mkdtemp(prefix="my_ops")) / "libmy_ops.so"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-w", f"-I{headers}"]
    subprocess.run([compiler, *flags, str(_HERE / "my_ops.cc"), "-o", str(path)], check=True)
    return path


@torch.library.custom_op("my_ops::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return ``x * factor``."""
    return x * factor


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("my_ops::nonzeros", mutates_args=())
def nonzeros(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the elements that are not zero, and their number."""
    kept = x[x != 0]
    return kept.clone(), torch.tensor(kept.numel())


@nonzeros.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(size), x.new_empty((), dtype=torch.int64)


def converter() -> TorchConverter:
    """Return a converter that lowers both operators to opaque nodes."""
    made = TorchConverter()

    @made.register_torch_lowering("my_ops::scale.default")
    def lower_scale(op, x, factor):
        return op.node("Scale", x, domain="my.ops", factor=factor)

    @made.register_torch_lowering("my_ops::nonzeros.default")
    def lower_nonzeros(op, x):
        return op.node("NonZeros", x, domain="my.ops", outputs=2)

    return made
