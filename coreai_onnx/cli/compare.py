"""``coreai-onnx compare``."""

from __future__ import annotations

import argparse

from coreai_onnx.cli.subject import load_subject
from coreai_onnx.runtime.session import Session

NAME = "compare"
DESCRIPTION = """\
compare a .onnx file with the torch module it came from

Runs the module eagerly, and the file on function bodies and on kernels (if built), on the
factory's arguments. Prints the error of every output. Exit code 1 if one is outside the tolerance.

  coreai-onnx compare model.onnx my_models:tiny
  coreai-onnx compare model.onnx my_models.py:tiny --rtol 1e-3 --atol 1e-4
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("factory", metavar="FACTORY", help="as for convert")
    parser.add_argument("--rtol", type=float, help="relative tolerance (default: by dtype)")
    parser.add_argument("--atol", type=float, help="absolute tolerance (default: by dtype)")


def execute(options: argparse.Namespace) -> int:
    """Print the comparison; return 1 if it is not ok."""
    from coreai_onnx.debugging.comparison import compare
    from coreai_onnx.debugging.torch_side import Arguments

    Session(options.model, kernels=False)  # a wrong file is told before the module is built
    subject = load_subject(options.factory)
    tolerances = None
    if options.rtol is not None or options.atol is not None:
        tolerances = (options.rtol or 0.0, options.atol or 0.0)
    inputs = Arguments(subject.args, subject.kwargs)
    comparison = compare(options.model, subject.module, inputs, tolerances=tolerances)
    print(comparison)
    return 0 if comparison.ok else 1
