"""Detects factories with random weights, which a comparison with a file must know of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coreai_onnx.cli.options.subject import Subject, load_subject
from coreai_onnx.errors import CommandError

if TYPE_CHECKING:
    import torch


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
