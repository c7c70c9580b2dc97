"""The command line, ``coreai-onnx`` or ``python -m coreai_onnx``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from coreai_onnx.cli.interrupt import EXIT_CODE, interrupt_at_signals, interrupted

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; None takes those of the process.

    Returns:
        0 on success, 1 if ``compare`` or ``diff`` found a difference, 2 on an error, 130 after
        Ctrl-C, SIGTERM or SIGHUP, 141 if the reader of the output has closed it.
    """
    try:
        if arguments is None:
            interrupt_at_signals()
        from coreai_onnx.cli.command import run  # numpy and onnxruntime take a second to import

        return run(arguments)
    except BaseException as error:
        if not interrupted(error):
            raise
    print("interrupted", file=sys.stderr)
    return EXIT_CODE
