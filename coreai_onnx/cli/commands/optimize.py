"""``coreai-onnx optimize``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from coreai_onnx.cli.options import output
from coreai_onnx.cli.options.numbers import stages_shown
from coreai_onnx.cli.options.subject import load_record
from coreai_onnx.errors import CommandError
from coreai_onnx.messages import begin_stage
from coreai_onnx.program import OnnxProgram

if TYPE_CHECKING:
    from coreai_onnx.model.checks.violations import Verifier

NAME = "optimize"
DESCRIPTION = """\
run the graph passes on a .onnx file

The file may come from this package or from any other exporter, and the output may overwrite it.
Prints what every pass did.

  coreai-onnx optimize model.onnx -o optimized.onnx
  coreai-onnx optimize model.onnx -o model.onnx --target contrib
  coreai-onnx optimize model.onnx -o model.onnx --passes default,merge_projections --near-misses
  coreai-onnx optimize model.onnx -o model.onnx --passes merge_casts,my_passes:drop_dropout
  coreai-onnx optimize model.onnx -o model.onnx --verify record.pt2
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    output.declare(parser)
    parser.add_argument(
        "--verify",
        metavar="RECORD.pt2",
        help="compare every part of the model with torch after each pass; the record is what "
        "convert --record wrote. A pass that changes a result is an error that names it, the "
        "nodes with their lines, and a folder that reproduces the result",
    )


def execute(options: argparse.Namespace) -> int:
    """Optimize, save, and print the report."""
    options.output = output.chosen_place(options.output)
    with stages_shown():
        begin_stage("load")
        program = OnnxProgram.load(options.model)
        output.optimize(program, options, _verifier(program, options.verify))
        output.save(program, options)
    return 0


def _verifier(program: OnnxProgram, record: str | None) -> Verifier | None:
    """Return the verifier of passes by the record in a file; None if none was given.

    Raises:
        LoadError: If the file is not a record.
        CommandError: If the record has no example inputs, or the program several entrypoints.
    """
    if record is None:
        return None
    if len(program.entrypoints) > 1:
        names = ", ".join(program.entrypoints)
        raise CommandError(
            f"--verify: a record is of one entrypoint, the file has several: {names}\n"
            "  optimize the file of each entrypoint with its own record"
        )
    from coreai_onnx.debugging.blaming.pass_verification import PassVerifier

    return PassVerifier(load_record(record))
