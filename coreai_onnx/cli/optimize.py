"""``coreai-onnx optimize``."""

from __future__ import annotations

import argparse

from coreai_onnx.cli import output
from coreai_onnx.cli.progress import stages_shown
from coreai_onnx.program import OnnxProgram
from coreai_onnx.stages import begin

NAME = "optimize"
DESCRIPTION = """\
run the graph passes on a .onnx file

The file may come from this package or from any other exporter, and the output may overwrite it.
Prints what every pass did.

  coreai-onnx optimize model.onnx -o optimized.onnx
  coreai-onnx optimize model.onnx -o model.onnx --target contrib
  coreai-onnx optimize model.onnx -o model.onnx --passes default,merge_projections --near-misses
  coreai-onnx optimize model.onnx -o model.onnx --passes merge_casts,my_passes:drop_dropout
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    output.declare(parser)


def execute(options: argparse.Namespace) -> int:
    """Optimize, save, and print the report."""
    options.output = output.chosen_place(options.output)
    with stages_shown():
        begin("load")
        program = OnnxProgram.load(options.model)
        output.optimize(program, options)
        output.save(program, options)
    return 0
