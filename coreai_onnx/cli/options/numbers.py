"""Numbers, progress, and random weights as options."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from coreai_onnx.cli.options.subject import Subject, load_subject
from coreai_onnx.errors import CommandError
from coreai_onnx.messages import reported_to

if TYPE_CHECKING:
    import torch


def switch(parser: Any, name: str, text: str) -> None:
    """Declare ``--name`` and ``--no-name``; None if neither is given."""
    parser.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)


def repeated(parser: Any, name: str, metavar: str, text: str) -> None:
    """Declare an option that may be given several times; its value is a list."""
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=text)


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for an integer from ``minimum`` to ``maximum``, both included."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if number < minimum or (maximum is not None and number > maximum):
            bounds = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise argparse.ArgumentTypeError(f"{number} is not {bounds}")
        return number

    return read


def tolerance(text: str) -> float:
    """Parse a tolerance, a finite number of at least 0; an argparse type."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return number


SEED = integer(0, 2**32 - 1)
"""An argparse type for a seed that both torch and numpy accept."""
SEED_HELP = "seed of the random numbers that the factory draws (default: 0)"


@contextmanager
def stages_shown() -> Iterator[None]:
    """While active, print each stage with the elapsed seconds; print nothing without a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    start = time.monotonic()

    def show(stage: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {stage}", file=sys.stderr, flush=True)

    with reported_to(show):
        yield


def random_weights(factory: str, subject: Subject, seed: int) -> str:
    """Return a note about the random weights of a factory; empty if its weights are fixed.

    The factory is called again, with the same seed and with another.

    Args:
        factory: The factory, as for `load_subject`.
        subject: The result of the factory.
        seed: The seed that the factory was called with.
    """
    if subject.program is not None:
        return ""
    if _differs(subject.module, factory, seed):
        return (
            f"{factory} makes other weights in each call, whatever the seed: "
            "save them, and load them in the factory"
        )
    # numpy does not accept larger seeds.
    if _differs(subject.module, factory, (seed + 1) % 2**32):
        return (
            f"{factory} makes random weights, here those of --seed {seed}: "
            "convert and compare with one seed, or load weights in the factory"
        )
    return ""


def _differs(module: torch.nn.Module, factory: str, seed: int) -> bool:
    try:
        other = load_subject(factory, seed).module
    except CommandError:  # a factory that can be called only once
        return False
    # The factory returns a module that it keeps, which cannot differ from itself.
    if other is module:
        return False
    mine, theirs = module.state_dict(), other.state_dict()
    return mine.keys() != theirs.keys() or not all(
        _same(tensor, theirs[name]) for name, tensor in mine.items()
    )


def _same(first: object, second: object) -> bool:
    import torch

    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return True  # the result of a module's get_extra_state()
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, so that a NaN equals itself."""
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
