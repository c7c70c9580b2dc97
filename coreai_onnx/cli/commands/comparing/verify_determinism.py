"""``coreai-onnx verify-determinism``."""

from __future__ import annotations

import argparse
from typing import Any

from coreai_onnx.cli.options.inputs import chosen_inputs, declare_inputs, declare_kernels
from coreai_onnx.debugging.determinism import AXES, verify_determinism
from coreai_onnx.errors import CommandError
from coreai_onnx.model.contract import IDS, MASK, POSITIONS
from coreai_onnx.runtime.sessions.session import Session

NAME = "verify-determinism"
DESCRIPTION = """\
count the bits that differ between runs of a .onnx file that compute the same

Runs the file again and again, with 1 to 16 threads, with each row alone and in batches of 2 to 64,
and a decoder with its prompt whole and in chunks. Prints the bits that differ by output, and the
first node whose result differs. The exit code is 1 if a bit differs.

  coreai-onnx verify-determinism model.onnx --dim batch=64 --deterministic
  coreai-onnx verify-determinism model.onnx --dim batch=64 --no-kernels      # stock onnxruntime
  coreai-onnx verify-determinism lm/model.onnx --dim batch_size=8 --dim sequence_length=23
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    declare_inputs(parser)
    declare_kernels(parser)
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="open it as session(deterministic=True) does, which refuses some models",
    )
    parser.add_argument("--axis", action="append", choices=AXES, help="only these (default: all)")
    parser.add_argument("--batch", metavar="DIM", help="the dim of rows (default: the first one)")
    parser.add_argument(
        "--sequence", metavar="DIM", help="the dim of tokens (default: the second one of a decoder)"
    )


def execute(options: argparse.Namespace) -> int:
    """Print what differs; return 1 if a bit does."""
    settings: dict[str, Any] = {"deterministic": options.deterministic, "kernels": options.kernels}
    session = Session(options.model, **settings)
    inputs = chosen_inputs(session, options)
    # Random numbers are 0 and 1: a mask with gaps, and positions that repeat.
    for name in inputs.keys() - {text.partition("=")[0] for text in options.input}:
        if name == MASK:
            inputs[name][...] = 1
        elif name == POSITIONS:
            inputs[name][...] = range(inputs[name].shape[-1])
    if IDS in inputs and MASK in inputs and inputs[MASK].shape[-1] != inputs[IDS].shape[-1]:
        raise CommandError(
            f"{MASK} has {inputs[MASK].shape[-1]} columns for {inputs[IDS].shape[-1]} tokens; "
            "give both the same size by --dim"
        )
    result = verify_determinism(
        options.model,
        inputs,
        batch=options.batch,
        sequence=options.sequence,
        axes=options.axis,
        **settings,
    )
    print(result)
    return 0 if result.ok else 1
