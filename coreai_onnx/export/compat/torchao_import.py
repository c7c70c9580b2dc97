"""Imports torchao without its warnings about libraries for GPUs."""

from __future__ import annotations

import importlib
import importlib.util

from coreai_onnx.quiet import without_warnings


def import_torchao() -> None:
    """Import torchao, if it is installed, before transformers does.

    Without a GPU it logs a warning for each of its libraries.
    """
    if importlib.util.find_spec("torchao") is not None:
        with without_warnings("torchao", "torch.utils._pytree"):
            importlib.import_module("torchao.quantization")
