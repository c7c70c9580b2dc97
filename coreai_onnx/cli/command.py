"""The ``coreai-onnx`` command: its parser, and errors as one readable message."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from coreai_onnx.cli import compare, convert, diff, inspect_file, ops_path, optimize, run_file, view
from coreai_onnx.errors import CoreaiError
from coreai_onnx.printable import printable_lines

FAILED = 2
"""Exit code when a command could not work; 1 means ``compare`` or ``diff`` found a difference."""

_DESCRIPTION = """\
Convert PyTorch models to ONNX with composites kept as functions, run them, compare them.

  coreai-onnx convert my_models:tiny -o tiny.onnx --dynamic x:0=batch
  coreai-onnx optimize tiny.onnx -o tiny_contrib.onnx --target contrib
  coreai-onnx inspect tiny.onnx
  coreai-onnx run     tiny.onnx --dim batch=4
  coreai-onnx compare tiny.onnx my_models:tiny
  coreai-onnx diff    tiny.onnx tiny_before.onnx
  coreai-onnx view    tiny.onnx
"""
_EPILOG = "coreai-onnx COMMAND --help explains a command with examples."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; None takes those of the process.

    Returns:
        0 when all went well, 1 when ``compare`` or ``diff`` found a difference, 2 on an error.
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.execute(options)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever goes wrong is told in one message
        if options.debug:
            raise
        known = isinstance(error, CoreaiError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        hint = "" if known else "\n(--debug shows the traceback)"
        print(f"error: {printable_lines(text)}{hint}", file=sys.stderr)
        return FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser = argparse.ArgumentParser(
        prog="coreai-onnx",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (convert, optimize, run_file, compare, inspect_file, diff, view, ops_path):
        help_line, _, _ = command.DESCRIPTION.partition("\n")
        subparser = commands.add_parser(
            command.NAME,
            parents=[shared],
            help=help_line,
            description=command.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.declare(subparser)
        subparser.set_defaults(execute=command.execute)
    return parser
