"""Keeps torch, transformers and torchao from printing what does not help a user."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from coreai_onnx.export.compat.patches import exchanged
from coreai_onnx.export.compat.torch_names import export_trace
from coreai_onnx.export.compat.turns import is_mine, turn
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.dependencies import NO_USER_CODE, SIDE_EFFECTS


@contextmanager
def ignored(message: str) -> Iterator[None]:
    """While active, ignore warnings whose message begins with a regular expression.

    ``warnings.catch_warnings`` restores all filters of the process, and so reverts changes that
    other threads make meanwhile. This removes only its own filter.
    """
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message)
    added = warnings.filters[0]
    try:
        yield
    finally:
        # filterwarnings moves an equal filter to the front; that one is another's and stays.
        if added not in before and added in warnings.filters:
            warnings.filters.remove(added)  # type: ignore[attr-defined]


@contextmanager
def without_graph_dumps() -> Iterator[None]:
    """While active, torch.export prints no graph to stderr for the converting thread.

    Nor does it report guards that Dynamo fails to create, which an error follows, and attributes
    that it sets back after the compilation, such as those in which transformers collects outputs.
    """
    loggers = {logging.getLogger(name): is_kept for name, is_kept in _FILTERS.items()}
    for logger, is_kept in loggers.items():
        logger.addFilter(is_kept)
    try:
        with (
            turn(),
            exchanged(vars(export_trace), "print", _print),
            ignored(SIDE_EFFECTS.pattern.pattern),
        ):
            yield
    finally:
        for logger, is_kept in loggers.items():
            logger.removeFilter(is_kept)


def _print(*values: Any, file: Any = None, **options: Any) -> None:
    """Print as usual, except to stderr from the converting thread."""
    if file is not sys.stderr or not is_mine():
        print(*values, file=file, **options)


def _is_kept(record: logging.LogRecord) -> bool:
    return not NO_USER_CODE.is_in(record.msg) or not is_mine()


_FILTERS: Mapping[str, Callable[[logging.LogRecord], bool]] = MappingProxyType(
    {
        "torch.fx.experimental.symbolic_shapes": _is_kept,
        "torch._guards": lambda _: not is_mine(),
    }
)
"""Which records of a logger are kept."""

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
