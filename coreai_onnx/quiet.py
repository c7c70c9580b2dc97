"""Suppresses onnx_ir's warnings: they print names unescaped, and this package checks the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep onnx_ir from logging warnings while it reads or writes a model."""
    logger = logging.getLogger("onnx_ir.serde")

    def drop(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
