"""``coreai-onnx memory``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from coreai_onnx.cli.options.inputs import (
    chosen_inputs,
    chosen_provider,
    declare_inputs,
    declare_kernels,
    declare_provider,
)
from coreai_onnx.cli.options.output import chosen_place
from coreai_onnx.messages import size_text
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.memory.plan import memory_plan
from coreai_onnx.runtime.memory.reordering import reorder
from coreai_onnx.runtime.sessions.session import Session

NAME = "memory"
DESCRIPTION = """\
print the memory that a .onnx file takes at given sizes

Runs the model once with one thread. Prints the peak of the activations, a chart over the nodes in
the order in which onnxruntime runs them, and the values at the peak with their source lines.

  coreai-onnx memory model.onnx --dim batch=4 --dim seq=128    # other dynamic dims are 2
  coreai-onnx memory model.onnx --dim seq=512 --low-memory --no-kernels
  coreai-onnx memory model.onnx --reorder smaller.onnx         # nodes in a better order
  coreai-onnx memory lm_bundle --entrypoint decode
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    declare_inputs(parser)
    parser.add_argument("--entrypoint", metavar="NAME", help="the entrypoint of a bundle to run")
    declare_kernels(parser)
    declare_provider(parser)
    parser.add_argument(
        "--low-memory",
        action="store_true",
        help="release each result after its last reader, as session(low_memory=True) does",
    )
    parser.add_argument(
        "--reorder",
        type=Path,
        metavar="OUT.onnx",
        help="write the file with its nodes in an order that takes less memory, if there is one",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the model and print its plan."""
    place = chosen_place(options.reorder, ".onnx") if options.reorder else None
    settings = {name: getattr(options, name) for name in ("entrypoint", "kernels", "low_memory")}
    settings["provider"] = chosen_provider(options)

    def choose(session: Session) -> Mapping[str, object]:
        return chosen_inputs(session, options)

    if place is None:
        print(memory_plan(options.model, choose, **settings))
        return 0
    program = OnnxProgram.load(options.model)
    before, after = reorder(program, choose, **settings)
    print(after)
    # `reorder` returns one plan twice if it has kept the order.
    if after is before:
        print("no other order takes less memory")
        return 0
    paths = program.save(place)
    print(f"peak {size_text(before.peak)} -> {size_text(after.peak)}, written to {paths[0]}")
    return 0
