"""``coreai-onnx inspect``."""

from __future__ import annotations

import argparse

from coreai_onnx.debugging.inspection import inspect_model

NAME = "inspect"
DESCRIPTION = """\
print what a .onnx file holds

Files and sizes, inputs, states and outputs with dtypes and dims, composites and how often they
are called, operators, functions, metadata. Weights are not loaded.

  coreai-onnx inspect model.onnx
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the file."""
    parser.add_argument("model", metavar="MODEL.onnx")


def execute(options: argparse.Namespace) -> int:
    """Print the inspection."""
    print(inspect_model(options.model))
    return 0
