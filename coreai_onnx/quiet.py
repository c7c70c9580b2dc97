"""onnx_ir without its warnings: they hold names of the file as they are, and are checked here."""

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
