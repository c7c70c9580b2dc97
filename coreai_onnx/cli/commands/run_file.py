"""``coreai-onnx run``."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

import numpy as np

from coreai_onnx.cli.options.inputs import (
    chosen_inputs,
    chosen_provider,
    declare_inputs,
    declare_kernels,
    declare_provider,
    declare_threads,
)
from coreai_onnx.cli.options.numbers import repeated
from coreai_onnx.cli.options.output import chosen_place
from coreai_onnx.cli.options.tensors import describe
from coreai_onnx.errors import CommandError
from coreai_onnx.messages import render
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Outputs
from coreai_onnx.targets.providers import full_name

NAME = "run"
DESCRIPTION = """\
run a .onnx file once and print its outputs

Inputs that are not given are random: floats are normal, integers 0 or 1.

  coreai-onnx run model.onnx                              # dynamic dims are 2
  coreai-onnx run model.onnx --dim batch=4 --dim seq=128
  coreai-onnx run model.onnx --input ids=ids.npy --input mask=random
  coreai-onnx run model.onnx --provider cuda --provider-option device_id=1
  coreai-onnx run model.onnx --input "x=float32[2,8]" --no-kernels --save outputs.npz
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    declare_inputs(parser)
    declare_kernels(parser)
    declare_threads(parser)
    declare_provider(parser)
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end the run after this time"
    )
    repeated(
        parser,
        "--library",
        "FILE.so",
        "a custom op library that implements operators of the model; may be repeated",
    )
    parser.add_argument("--save", metavar="FILE.npz", type=Path, help="write the outputs to a file")


def execute(options: argparse.Namespace) -> int:
    """Run the model and print a table of its outputs."""
    save = chosen_place(options.save, ".npz") if options.save else None
    session = Session(
        options.model,
        kernels=options.kernels,
        threads=options.threads,
        timeout=options.timeout,
        custom_ops=options.library,
        providers=chosen_provider(options),
    )
    inputs = chosen_inputs(session, options)
    # By position, because an input may have the name `self`.
    arguments = [inputs.pop(info.name) for info in session.inputs]
    outputs = session.run(*arguments, **inputs)
    rows = [(name, *describe(array)) for name, array in outputs.items()]
    rows += [(f"state {name}", *describe(array)) for name, array in outputs.states.items()]
    where = f", {full_name(options.provider)}" if options.provider else ""
    print(f"ran on {'kernels' if session.kernels else 'function bodies'}{where}")
    print(render(("output", "type", "min", "mean", "max"), rows))
    if save is not None:
        _write(save, outputs)
        print(f"outputs written to {save}")
    return 0


def _write(path: Path, outputs: Outputs) -> None:
    """Write an ``.npz`` file, completely or not at all; an output may have any name."""
    try:
        # np.savez takes the arrays by keyword beside its own parameter `file`, and an output may
        # have that name.
        with all_or_nothing() as files, zipfile.ZipFile(files.create(path), "w") as archive:
            for name, array in outputs.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
