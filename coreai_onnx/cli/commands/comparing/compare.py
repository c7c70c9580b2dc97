"""``coreai-onnx compare``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coreai_onnx.cli.options.inputs import chosen_provider, declare_executions
from coreai_onnx.cli.options.numbers import SEED, SEED_HELP, random_weights, tolerance
from coreai_onnx.cli.options.output import chosen_place
from coreai_onnx.cli.options.subject import load_subject
from coreai_onnx.errors import CommandError
from coreai_onnx.runtime.sessions.session import Session

if TYPE_CHECKING:
    from coreai_onnx.debugging.comparing.comparison import Comparison

NAME = "compare"
DESCRIPTION = """\
compare a .onnx file with the torch module it came from, or with another file

Runs the module eagerly and in float64, and the file with function bodies and with kernels (if
built), on the factory's arguments. Prints the error of every output. The exit code is 1 if an error
is much larger than torch's own against float64, or exceeds the tolerance. A factory with random
weights recreates those of the file if both commands use the same --seed. With another .onnx file,
the inputs are random.

  coreai-onnx compare model.onnx my_models:tiny
  coreai-onnx compare model.onnx record.pt2 --values
  coreai-onnx compare model.onnx my_models.py:tiny --rtol 1e-3 --atol 1e-4
  coreai-onnx compare optimized.onnx model.onnx
  coreai-onnx compare model.onnx record.pt2 --runtime old/bin/python
  coreai-onnx compare model.onnx model.onnx --provider webgpu    # with the CPU
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("factory", metavar="REFERENCE", help="FACTORY, as for convert, or a .onnx")
    parser.add_argument("--rtol", type=tolerance, help="relative tolerance, not torch's own error")
    parser.add_argument("--atol", type=tolerance, help="absolute tolerance, not torch's own error")
    parser.add_argument(
        "--values",
        action="store_true",
        help="compare the values inside of the graph, too; REFERENCE is the record of convert",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="also write a page with the graph by error"
    )
    parser.add_argument(
        "--runtime",
        metavar="PYTHON",
        help="also run the file in another Python, with numpy and another version of onnxruntime",
    )
    declare_executions(parser)
    parser.add_argument("--seed", type=SEED, default=0, help=SEED_HELP)


def execute(options: argparse.Namespace) -> int:
    """Print the comparison; return 1 if outputs differ."""
    from coreai_onnx.debugging.comparing.comparison import compare
    from coreai_onnx.debugging.reference.torch_side import Arguments

    if options.html is not None:
        options.html = chosen_place(options.html, ".html")
    provider = chosen_provider(options)
    # Reports a bad file or provider before the module is built.
    Session(options.model, kernels=False, providers=provider)
    tolerances = None
    if options.rtol is not None or options.atol is not None:
        # A tolerance that is not given is 0: it replaces torch's own error, not the default of a
        # dtype.
        tolerances = (options.rtol or 0.0, options.atol or 0.0)
    settings: dict[str, Any] = {"tolerances": tolerances, "runtime": options.runtime}
    settings |= {"kernels": options.kernels, "provider": provider}
    if options.factory.endswith(".onnx"):
        comparison = compare(options.model, options.factory, **settings)
        _report(comparison, options)
        return 0 if comparison.ok else 1
    subject = load_subject(options.factory, options.seed)
    if subject.program is not None and subject.program.example_inputs is None:
        raise CommandError(f"{options.factory} holds no example inputs to compare on")
    inputs = Arguments(subject.args, subject.kwargs)
    reference = subject.module if subject.program is None else subject.program
    comparison = compare(
        options.model,
        reference,
        inputs,
        values=options.values,
        **settings,
    )
    _report(comparison, options)
    if comparison.ok:
        return 0
    if reason := random_weights(options.factory, subject, options.seed):
        print(f"note: {reason}")
    return 1


def _report(comparison: Comparison, options: argparse.Namespace) -> None:
    """Print the comparison, and write the page."""
    print(comparison)
    if options.html is not None:
        print(f"wrote {comparison.to_html(options.html, f'Comparison of {options.model}')}")
