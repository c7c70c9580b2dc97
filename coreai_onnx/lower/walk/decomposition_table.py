"""The decompositions that torch applies before a conversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from coreai_onnx.lower.walk.registry import is_whole


def get_decomp_table() -> dict[Any, Callable[..., Any]]:
    """Return a fresh decomposition table for ``ExportedProgram.run_decompositions``.

    It is torch's default table without the ops that have a better lowering.
    """
    table = torch.export.default_decompositions().items()
    return {op: rule for op, rule in table if not is_whole(str(op))}
