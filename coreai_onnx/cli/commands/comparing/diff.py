"""``coreai-onnx diff``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options.numbers import integer
from coreai_onnx.debugging.diff.model_diff import diff_models, page
from coreai_onnx.errors import CommandError
from coreai_onnx.model.files.saving import write_text

NAME = "diff"
DESCRIPTION = """\
print how two .onnx files differ

Interface, operators (a composite is one), function bodies, nodes and weights (by hash). Names of
intermediate values are ignored. The exit code is 0 if the models are the same, 1 if they differ,
2 on an error.

  coreai-onnx diff before.onnx after.onnx
  coreai-onnx diff before.onnx after.onnx --structure --output diff.html
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("before", metavar="BEFORE.onnx")
    parser.add_argument("after", metavar="AFTER.onnx")
    parser.add_argument("--structure", action="store_true", help="do not read the weights")
    parser.add_argument(
        "--limit",
        type=integer(0),
        default=20,
        metavar="N",
        help="lines per section (default 20; 0: all)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="also write every change to a .html or .txt file",
    )


def execute(options: argparse.Namespace) -> int:
    """Print the diff; return 1 if the models differ."""
    output: Path | None = options.output
    if output is not None and output.suffix not in (".html", ".txt"):
        raise CommandError(f"--output {output}: the name must end in .html or .txt")
    diff = diff_models(options.before, options.after, weights=not options.structure)
    print(diff.text(options.limit or None))
    if output is not None:
        html = output.suffix == ".html"
        text = page(diff, options.before, options.after) if html else f"{diff}\n"
        write_text(output, text)
    return 0 if diff.same else 1
