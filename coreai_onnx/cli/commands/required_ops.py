"""``coreai-onnx required-ops``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options.numbers import repeated, switch
from coreai_onnx.cli.options.output import chosen_place
from coreai_onnx.errors import CommandError
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.runtime.sessions.required_operators import required_operators

NAME = "required-ops"
DESCRIPTION = """\
list the operators and types that models need, for a runtime with nothing else

  coreai-onnx required-ops encoder.onnx decoder.onnx -o required_operators.config
  coreai-onnx required-ops model.onnx --no-kernels --no-types

onnxruntime's build.py reads the file with --include_ops_by_config, and the build of the kernel
library with -DCOREAI_OPS_CONFIG.
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("models", metavar="MODEL.onnx", nargs="+")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.config",
        type=Path,
        help="the file to write (default: print)",
    )
    switch(
        parser,
        "--kernels",
        "list composites as operators, or the operators of their bodies (default: kernels if "
        "built)",
    )
    parser.add_argument(
        "--types",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="list types as well (default: yes)",
    )
    repeated(
        parser,
        "--library",
        "FILE.so",
        "a custom op library that implements operators of the models; may be repeated",
    )


def execute(options: argparse.Namespace) -> int:
    """Print the list, or write it to a file."""
    path = chosen_place(options.output, ".config") if options.output else None
    text = required_operators(
        options.models, kernels=options.kernels, types=options.types, custom_ops=options.library
    )
    if path is None:
        print(text, end="")
        return 0
    try:
        with all_or_nothing() as files:
            files.create(path).write(text.encode())
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
    print(f"operators of {len(options.models)} model(s) written to {path}")
    return 0
