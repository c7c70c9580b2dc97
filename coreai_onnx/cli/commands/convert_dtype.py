"""``coreai-onnx convert-dtype``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options import output
from coreai_onnx.cli.options.numbers import repeated, stages_shown
from coreai_onnx.cli.options.quantization import feeds
from coreai_onnx.messages import begin_stage, printable
from coreai_onnx.program import OnnxProgram

NAME = "convert-dtype"
DESCRIPTION = """\
convert a float32 .onnx file to float16 or bfloat16

Nodes whose values this dtype cannot hold keep float32 (docs/quantization.md). Prints which and why.

  coreai-onnx convert-dtype model.onnx -o model_float16.onnx
  coreai-onnx convert-dtype model.onnx -o model_float16.onnx --keep-io --calibration inputs
  coreai-onnx convert-dtype model.onnx -o model_float16.onnx --keep "*lm_head" --keep Softmax
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    output.declare_file(parser)
    parser.add_argument("--dtype", default="float16", help="float16 (default) or bfloat16")
    parser.add_argument(
        "--keep-io",
        action="store_true",
        help="inputs and outputs, except states, stay float32",
    )
    repeated(parser, "--keep", "PATTERN", "modules, nodes or op types that keep float32")
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FOLDER",
        help="a folder of .npz files, or one such file, each with the inputs of a call by name: "
        "nodes with values that overflow on them keep float32",
    )


def execute(options: argparse.Namespace) -> int:
    """Convert, save, and print the report."""
    options.output = output.chosen_place(options.output)
    with stages_shown():
        begin_stage("load")
        program = OnnxProgram.load(options.model)
        program.convert_dtype(
            options.dtype,
            keep_io=options.keep_io,
            keep=options.keep,
            calibration=None if options.calibration is None else feeds(options.calibration),
        )
        for name, report in program.dtype_reports.items():
            if len(program.entrypoints) > 1:
                print(printable(f"entrypoint {name}"))
            print(f"{report}\n")
        output.save(program, options)
    return 0
