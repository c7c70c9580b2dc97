"""Suppresses warnings of other packages that do not help a user of this one."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_warnings(*loggers: str) -> Iterator[None]:
    """Keep loggers from logging warnings.

    Args:
        *loggers: Their names; by default that of onnx_ir's reader and writer, whose warnings print
            names unescaped, and this package checks the same.
    """
    chosen = [logging.getLogger(name) for name in loggers or ("onnx_ir.serde",)]

    def drop(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    for logger in chosen:
        logger.addFilter(drop)
    try:
        yield
    finally:
        for logger in chosen:
            logger.removeFilter(drop)


def import_torchao() -> None:
    """Import torchao, if it is installed, before transformers does.

    Without a GPU it warns about each of its libraries for GPUs.
    """
    if importlib.util.find_spec("torchao") is not None:
        with without_warnings("torchao", "torch.utils._pytree"):
            importlib.import_module("torchao.quantization")
