"""Warnings of other packages do not reach a terminal."""

from __future__ import annotations

import logging
import subprocess
import sys

from coreai_onnx.quiet import without_warnings


def test_warnings_are_dropped_for_the_time_of_a_block(log_records: list[logging.LogRecord]) -> None:
    logger = logging.getLogger("onnx_ir.serde")
    with without_warnings():
        logger.warning("named \x1b[2J")
        logger.error("told")
    logger.warning("afterwards")
    assert [record.getMessage() for record in log_records] == ["told", "afterwards"]


def test_torchao_is_imported_in_silence() -> None:
    program = "from coreai_onnx.quiet import import_torchao; import_torchao(); import sys; "
    program += "assert 'torchao.quantization' in sys.modules"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
