"""Suppresses warnings of other packages that do not help a user of this one."""

from __future__ import annotations

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
