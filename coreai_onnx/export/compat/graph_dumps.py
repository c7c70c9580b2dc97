"""Keeps torch.export from printing the graph of a failed export to stderr.

The error of this package names the line of the model instead, and a retried export would print the
graph once for every attempt. Torch's error still has it as ``partial_fx_graph``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coreai_onnx.export.compat.patches import exchanged
from coreai_onnx.export.compat.torch_names import export_trace
from coreai_onnx.export.compat.turns import is_mine, turn

_NO_USER_CODE = "Unable to find user code"


@contextmanager
def without_graph_dumps() -> Iterator[None]:
    """While active, torch.export prints no graph to stderr for the converting thread."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    logger.addFilter(_is_kept)
    try:
        with turn(), exchanged(vars(export_trace), "print", _print):
            yield
    finally:
        logger.removeFilter(_is_kept)


def _print(*values: Any, file: Any = None, **options: Any) -> None:
    """Print as usual, except to stderr from the converting thread."""
    if file is not sys.stderr or not is_mine():
        print(*values, file=file, **options)


def _is_kept(record: logging.LogRecord) -> bool:
    return _NO_USER_CODE not in str(record.msg) or not is_mine()
