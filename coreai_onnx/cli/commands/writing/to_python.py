"""``coreai-onnx to-python``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.program import OnnxProgram

NAME = "to-python"
DESCRIPTION = """\
write a .onnx file as a Python package, to read, edit and build again

The package needs onnxscript, onnx and numpy. Its model.py has a function for each composite and
for each module; weights are in a safetensors file beside it.

  coreai-onnx to-python model.onnx -o my_model
  python -m my_model build model_again.onnx
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="the package"
    )


def execute(options: argparse.Namespace) -> int:
    """Write the package."""
    folder = OnnxProgram.load(options.model).to_python(options.output)
    print(f"{folder}: build it with python -m {folder.name} build model.onnx")
    return 0
