"""Imports torchao without its warnings about libraries for GPUs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util

from coreai_onnx.messages import without_warnings

_MODULES = ("torchao.quantization", "torchao.prototype.safetensors.safetensors_support")
"""What transformers imports."""


def import_torchao() -> None:
    """Import torchao, if it is installed, before transformers does.

    Without a GPU it logs a warning for each of its libraries.
    """
    if importlib.util.find_spec("torchao") is None:
        return
    with without_warnings("torchao", "torch.utils._pytree"):
        for name in _MODULES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
