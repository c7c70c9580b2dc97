"""``coreai-onnx run``."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

import numpy as np

from coreai_onnx.cli.numbers import SEED, integer
from coreai_onnx.cli.output import chosen_place
from coreai_onnx.cli.tensors import (
    describe,
    fill_dims,
    random_tensor,
    read_tensor,
    restore_dtype,
    split_assignments,
)
from coreai_onnx.debugging.difference import Array
from coreai_onnx.errors import CommandError
from coreai_onnx.files.new_files import all_or_nothing
from coreai_onnx.runtime.expressions import names_in
from coreai_onnx.runtime.outputs import Outputs
from coreai_onnx.runtime.session import Session
from coreai_onnx.runtime.settings import MAX_THREADS
from coreai_onnx.table import render

NAME = "run"
DESCRIPTION = """\
run a .onnx file once and print its outputs

Inputs that are not given are random: floats are normal, integers 0 or 1.

  coreai-onnx run model.onnx                              # dynamic dims are 2
  coreai-onnx run model.onnx --dim batch=4 --dim seq=128
  coreai-onnx run model.onnx --input ids=ids.npy --input mask=random
  coreai-onnx run model.onnx --input "x=float32[2,8]" --no-kernels --save outputs.npz
"""
_DEFAULT_SIZE = 2


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an input: FILE.npy, random, or a type such as float32[2,8] (random values)",
    )
    parser.add_argument(
        "--dim", action="append", default=[], metavar="NAME=SIZE", help="size of a dynamic dim"
    )
    parser.add_argument(
        "--kernels",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="run composites with native kernels or function bodies (default: kernels if built)",
    )
    parser.add_argument(
        "--threads",
        type=integer(1, MAX_THREADS),
        metavar="N",
        help=f"number of threads per operator, at most {MAX_THREADS}",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end the run after this time"
    )
    parser.add_argument("--seed", type=SEED, default=0, help="seed of random inputs (default: 0)")
    parser.add_argument(
        "--library",
        action="append",
        default=[],
        metavar="FILE.so",
        help="a custom op library that implements operators of the model; may be repeated",
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
    )
    inputs = _inputs(session, options)
    arguments = [inputs.pop(info.name) for info in session.inputs]
    outputs = session.run(*arguments, **inputs)
    rows = [(name, *describe(array)) for name, array in outputs.items()]
    rows += [(f"state {name}", *describe(array)) for name, array in outputs.states.items()]
    print(f"ran on {'kernels' if session.kernels else 'function bodies'}")
    print(render(("output", "type", "min", "mean", "max"), rows))
    if save is not None:
        _write(save, outputs)
        print(f"outputs written to {save}")
    return 0


def _write(path: Path, outputs: Outputs) -> None:
    """Write an ``.npz`` file, completely or not at all; an output may have any name."""
    try:
        with all_or_nothing() as files, zipfile.ZipFile(files.create(path), "w") as archive:
            for name, array in outputs.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error


def _inputs(session: Session, options: argparse.Namespace) -> dict[str, Array]:
    rng = np.random.default_rng(options.seed)
    texts = split_assignments(options.input, "--input")
    infos = {info.name: info for info in (*session.inputs, *session.state_inputs)}
    given: dict[str, Array] = {}
    for name, text in texts.items():
        if name not in infos:
            raise CommandError(f"--input {name}: the model has no such input\n{session!r}")
        if text != "random":
            given[name] = restore_dtype(read_tensor(text, rng), infos[name])
    sizes = _sizes(session, given, options.dim)
    for info in session.inputs:
        if info.name not in given:
            given[info.name] = random_tensor(info.dtype, fill_dims(info, sizes), rng)
    return given


def _dim_names(session: Session) -> dict[str, None]:
    """Return the symbolic dims of the inputs, and the names in dims that are expressions."""
    dims = [dim for info in session.inputs for dim in info.dims if isinstance(dim, str)]
    return dict.fromkeys(name for dim in dims for name in (*names_in(dim), dim))


def _sizes(session: Session, given: dict[str, Array], dims: list[str]) -> dict[str, int]:
    """Return the sizes of symbolic dims: from the options, from the given inputs, or 2."""
    sizes: dict[str, int] = {}
    for info in session.inputs:
        shape = given[info.name].shape if info.name in given else (None,) * len(info.dims)
        for dim, size in zip(info.dims, shape, strict=False):
            if isinstance(dim, str) and size is not None:
                sizes.setdefault(dim, size)
    known = _dim_names(session)
    for name, text in split_assignments(dims, "--dim").items():
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "all dims are fixed"
            raise CommandError(f"--dim {name}: the inputs have no such dim; {there}")
        if not text.isdecimal():
            raise CommandError(f"--dim {name}={text}: the size must be a number")
        sizes[name] = int(text)
    return session.example_sizes(sizes, default=_DEFAULT_SIZE)
