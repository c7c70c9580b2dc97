"""Warnings of other packages do not reach a terminal."""

from __future__ import annotations

import logging

from coreai_onnx.quiet import without_warnings


def test_warnings_are_dropped_for_the_time_of_a_block(log_records: list[logging.LogRecord]) -> None:
    logger = logging.getLogger("onnx_ir.serde")
    with without_warnings():
        logger.warning("named \x1b[2J")
        logger.error("told")
    logger.warning("afterwards")
    assert [record.getMessage() for record in log_records] == ["told", "afterwards"]
