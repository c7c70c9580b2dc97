"""Options of the commands that run a file: inputs, sizes of dims, threads, provider."""

from __future__ import annotations

import argparse

import numpy as np

from coreai_onnx.cli.options.numbers import SEED, integer, repeated, switch
from coreai_onnx.cli.options.tensors import (
    fill_dims,
    random_tensor,
    read_tensor,
    restore_dtype,
    split_assignments,
)
from coreai_onnx.debugging.difference import Array
from coreai_onnx.errors import CommandError
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.settings import MAX_THREADS
from coreai_onnx.runtime.tensors.expressions import names_in
from coreai_onnx.targets.providers import Choice

_DEFAULT_SIZE = 2
_RUN_ON = "execution provider to run on: cpu, webgpu, cuda, openvino, or onnxruntime's name"


def declare_inputs(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `chosen_inputs`."""
    repeated(
        parser,
        "--input",
        "NAME=VALUE",
        "an input: FILE.npy, random, or a type such as float32[2,8] (random values)",
    )
    repeated(parser, "--dim", "NAME=SIZE", "size of a dynamic dim")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of random inputs (default: 0)")


def declare_kernels(parser: argparse.ArgumentParser) -> None:
    """Declare whether composites run with kernels."""
    switch(
        parser,
        "--kernels",
        "run composites with native kernels or function bodies (default: kernels if built)",
    )


def declare_threads(parser: argparse.ArgumentParser) -> None:
    """Declare the number of threads."""
    parser.add_argument(
        "--threads",
        type=integer(1, MAX_THREADS),
        metavar="N",
        help=f"number of threads per operator, at most {MAX_THREADS}",
    )


def declare_executions(parser: argparse.ArgumentParser) -> None:
    """Declare what a file is run with: function bodies, perhaps kernels, on a provider."""
    switch(parser, "--kernels", "also run the native kernels (default: if built, on the CPU)")
    declare_provider(parser)


def declare_provider(parser: argparse.ArgumentParser, use: str = _RUN_ON) -> None:
    """Declare an execution provider and its options; ``use`` is the help of the provider."""
    parser.add_argument("--provider", metavar="NAME", help=use)
    repeated(parser, "--provider-option", "NAME=VALUE", "an option of it; may be repeated")


def chosen_provider(options: argparse.Namespace) -> Choice | None:
    """Return the execution provider that the options choose; None if there is none.

    Raises:
        CommandError: If there are options without a provider, or one is not ``NAME=VALUE``.
    """
    texts = split_assignments(options.provider_option, "--provider-option")
    if texts and options.provider is None:
        raise CommandError("--provider-option needs --provider")
    return None if options.provider is None else (options.provider, texts)


def chosen_inputs(session: Session, options: argparse.Namespace) -> dict[str, Array]:
    """Return the inputs of a session that the options choose; the others are random.

    Raises:
        CommandError: If the model has no such input or dim, or a value cannot be read.
    """
    rng = np.random.default_rng(options.seed)
    texts = split_assignments(options.input, "--input")
    infos = {info.name: info for info in (*session.inputs, *session.state_inputs)}
    inputs: dict[str, Array] = {}
    for name, text in texts.items():
        if name not in infos:
            raise CommandError(f"--input {name}: the model has no such input\n{session!r}")
        if text != "random":
            inputs[name] = restore_dtype(read_tensor(text, rng), infos[name])
    sizes = _sizes(session, inputs, options.dim)
    for info in session.inputs:
        if info.name not in inputs:
            inputs[info.name] = random_tensor(info.dtype, fill_dims(info, sizes), rng)
    return inputs


def _dim_names(session: Session) -> dict[str, None]:
    """Return the symbolic dims of the inputs, and the names in dims that are expressions."""
    dims = [dim for info in session.inputs for dim in info.dims if isinstance(dim, str)]
    return dict.fromkeys(name for dim in dims for name in (*names_in(dim), dim))


def _sizes(session: Session, inputs: dict[str, Array], dims: list[str]) -> dict[str, int]:
    """Return the sizes of symbolic dims: from the options, from the given inputs, or 2."""
    sizes: dict[str, int] = {}
    for info in session.inputs:
        shape = inputs[info.name].shape if info.name in inputs else (None,) * len(info.dims)
        for dim, size in zip(info.dims, shape, strict=False):
            if isinstance(dim, str) and size is not None:
                sizes.setdefault(dim, size)
    names = _dim_names(session)
    for name, text in split_assignments(dims, "--dim").items():
        if name not in names:
            there = f"there are {', '.join(names)}" if names else "all dims are fixed"
            raise CommandError(f"--dim {name}: the inputs have no such dim; {there}")
        if not text.isdecimal():
            raise CommandError(f"--dim {name}={text}: the size must be a number")
        # Also against the size of a given input: the session reports the contradiction.
        sizes[name] = int(text)
    return session.example_sizes(sizes, default=_DEFAULT_SIZE)
