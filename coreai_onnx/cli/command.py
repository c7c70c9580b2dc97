"""The ``coreai-onnx`` command: its parser, and the reporting of errors."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coreai_onnx.cli.commands import (
    annotate,
    convert,
    convert_dtype,
    export,
    extract,
    inspect_file,
    map_rows,
    memory,
    ops_path,
    optimize,
    package_file,
    perplexity,
    profile_file,
    quantize,
    required_ops,
    run_file,
    serve,
    view,
)
from coreai_onnx.cli.commands.comparing import blame, compare, diff, verify_determinism
from coreai_onnx.cli.commands.writing import to_gguf, to_python
from coreai_onnx.cli.interrupt import interrupted
from coreai_onnx.errors import CommandError, CoreaiError
from coreai_onnx.messages import printable_lines

FAILED = 2
"""Exit code if a command fails; 1: ``compare``, ``blame``, ``diff`` or
``verify-determinism`` found a difference."""
# 128 + 13, as a shell reports a process that SIGPIPE ended.
NOBODY_READS = 141
"""Exit code if the reader of the output has closed it (``coreai-onnx inspect … | head``)."""

_DESCRIPTION = """\
Convert PyTorch models to ONNX with composites kept as functions, run them, compare them.

  coreai-onnx convert my_models:tiny -o tiny.onnx --dynamic x:0=batch
  coreai-onnx export my_llama -o my_llama_onnx
  coreai-onnx serve my_llama_paged
  coreai-onnx perplexity my_llama_onnx held_out.txt
  coreai-onnx optimize tiny.onnx -o tiny_contrib.onnx --target contrib
  coreai-onnx quantize tiny.onnx -o tiny_int4.onnx --bits 4
  coreai-onnx convert-dtype tiny.onnx -o tiny_float16.onnx --keep-io
  coreai-onnx inspect tiny.onnx
  coreai-onnx run     tiny.onnx --dim batch=4
  coreai-onnx map     tiny.onnx rows.parquet -o results.parquet
  coreai-onnx package tiny.onnx --for triton -o models
  coreai-onnx compare tiny.onnx my_models:tiny
  coreai-onnx blame   tiny.onnx tiny.pt2
  coreai-onnx memory  tiny.onnx --dim batch=4
  coreai-onnx verify-determinism tiny.onnx --dim batch=64
  coreai-onnx profile tiny.onnx tiny.pt2 --html tiny.html
  coreai-onnx annotate tiny.onnx tiny.pt2
  coreai-onnx extract tiny.onnx layers.0 -o layer.onnx
  coreai-onnx diff    tiny.onnx tiny_before.onnx
  coreai-onnx view    tiny.onnx
  coreai-onnx to-python tiny.onnx -o tiny
  coreai-onnx to-gguf my_llama_onnx -o my_llama.gguf
  coreai-onnx required-ops tiny.onnx -o required_operators.config
"""
_COMMANDS = (
    convert, export, serve, perplexity, optimize, quantize, convert_dtype, run_file, map_rows,
    package_file, compare, blame, profile_file, annotate, memory, verify_determinism,
    inspect_file, extract, diff, view, to_python, to_gguf, required_ops, ops_path,
)  # fmt: skip
_EPILOG = "coreai-onnx COMMAND --help explains a command with examples."


def run(arguments: Sequence[str] | None) -> int:
    """Run a command; see `coreai_onnx.cli.main`."""
    options = parser().parse_args(arguments)
    try:
        with _plain_warnings():
            code: int = options.execute(options)
        _flush()
    except BrokenPipeError:
        _abandon_output()
        return NOBODY_READS
    except Exception as error:  # every failure is reported as one message
        if options.debug or interrupted(error):
            raise
        # Otherwise torch is not the reason, and importing `versions` would import it.
        if sys.modules.get("torch"):
            from coreai_onnx.export.versions import refusal_after

            error = refusal_after(error) or error
        # Errors of this package are messages for the user; any other may be a bug, to be reported
        # with its traceback.
        expected = isinstance(error, CoreaiError)
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        hint = "" if expected else "\n(--debug shows the traceback)"
        print(f"error: {printable_lines(text)}{hint}", file=sys.stderr)
        return FAILED
    return code


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """While active, print warnings of this package without their place in it."""
    before = warnings.formatwarning
    package = str(Path(__file__).parent.parent)

    def text(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if filename.startswith(package):
            return f"warning: {printable_lines(str(message))}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = text
    try:
        yield
    finally:
        warnings.formatwarning = before


def _flush() -> None:
    """Flush the standard output, so that a failure is reported like any other error.

    Raises:
        CommandError: If the output cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon_output()
        raise CommandError(f"cannot write to the standard output: {error.strerror}") from error


def _abandon_output() -> None:
    """Discard the output that could not be written, so that the interpreter does not flush it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    # A parent of each command's parser: options of the first parser would have to precede the
    # command.
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    top = argparse.ArgumentParser(
        prog="coreai-onnx",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
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
    return top
