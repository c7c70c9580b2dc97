"""``coreai-onnx extract``."""

from __future__ import annotations

import argparse

from coreai_onnx.cli.options.output import chosen_place, declare_file, save
from coreai_onnx.program import OnnxProgram

NAME = "extract"
DESCRIPTION = """\
write one module of a .onnx file as a file of its own

The inputs and outputs are the values between the module and the rest of the model, by their names.
The file runs alone, and blame compares it by the same record.

  coreai-onnx extract model.onnx encoder.layer.0 -o layer.onnx
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("module", metavar="MODULE", help="path of the module, encoder.layer.0")
    declare_file(parser)


def execute(options: argparse.Namespace) -> int:
    """Write the file, and print its interface."""
    options.output = chosen_place(options.output)
    part = OnnxProgram.load(options.model).extract(options.module)
    save(part, options)
    print(part)
    return 0
