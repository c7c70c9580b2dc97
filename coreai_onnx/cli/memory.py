"""``coreai-onnx memory``."""

from __future__ import annotations

import argparse

from coreai_onnx.cli.inputs import chosen_inputs, declare_inputs
from coreai_onnx.memory.plan import MemoryPlan, plan_of
from coreai_onnx.runtime.recorded_session import RecordedSession

NAME = "memory"
DESCRIPTION = """\
print the memory that a .onnx file takes at given sizes

Runs the model once with one thread. Prints the peak of the activations, a chart over the nodes in
the order in which onnxruntime runs them, and the values at the peak with their source lines.

  coreai-onnx memory model.onnx --dim batch=4 --dim seq=128    # other dynamic dims are 2
  coreai-onnx memory model.onnx --dim seq=512 --low-memory --no-kernels
  coreai-onnx memory lm_bundle --entrypoint decode
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    declare_inputs(parser)
    parser.add_argument("--entrypoint", metavar="NAME", help="the entrypoint of a bundle to run")
    parser.add_argument(
        "--kernels",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="run composites with native kernels or function bodies (default: kernels if built)",
    )
    parser.add_argument(
        "--low-memory",
        action="store_true",
        help="release each result after its last reader, as session(low_memory=True) does",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the model and print its plan."""
    print(_plan(options))
    return 0


def _plan(options: argparse.Namespace) -> MemoryPlan:
    with RecordedSession(
        options.model,
        entrypoint=options.entrypoint,
        kernels=options.kernels,
        threads=1,
        low_memory=options.low_memory,
    ) as recorded:
        inputs = chosen_inputs(recorded.session, options)
        recorded.session.run(**inputs)
        return plan_of(recorded, inputs, low_memory=options.low_memory)
