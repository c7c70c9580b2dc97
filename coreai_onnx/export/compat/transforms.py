"""The transforms of ``torch.func``, which a failed trace leaves active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coreai_onnx.export.compat.torch_names import (
    enter_dual_level,
    exit_dual_level,
    transform_depth,
    undo_transforms_to,
)


@contextmanager
def transforms_restored() -> Iterator[None]:
    """On exit, leave the transforms that the block entered; torch does not after an error.

    Every later op of the process would otherwise be one of ``grad`` or ``jvp``.
    """
    depth, was_dual = transform_depth(), _is_dual()
    try:
        yield
    finally:
        if transform_depth() > depth:
            undo_transforms_to(depth)
        if not was_dual and _is_dual():
            exit_dual_level(level=0)


def _is_dual() -> bool:
    """Whether forward-mode differentiation is active; torch has one level of it."""
    try:
        level = enter_dual_level()
    except RuntimeError:
        return True
    exit_dual_level(level=level)
    return False
