"""What a trace drops or leaves behind: assignments to ``tensor.data``, active transforms."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from coreai_onnx.errors import ExportError
from coreai_onnx.export.compat.patches import patched
from coreai_onnx.export.compat.torch_names import (
    enter_dual_level,
    exit_dual_level,
    transform_depth,
    undo_transforms_to,
)
from coreai_onnx.export.versions import is_users, relative_path

_WRITER = 2
"""Number of frames from the replacement to the writer; the patch adds one in between."""


@contextmanager
def data_writes_refused() -> Iterator[None]:
    """While active, ``tensor.data = value`` in the user's code is an error.

    torch.export without ``strict`` runs the assignment and does not record it: its program computes
    with the previous values.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def set_attribute(self: torch.Tensor, name: str, value: Any) -> None:
            if name == "data":
                writer = sys._getframe(_WRITER)  # noqa: SLF001 - only the frame shows the line
                file = writer.f_code.co_filename
                # torch itself assigns to data, for example where it loads or moves parameters.
                if is_users(file):
                    raise ExportError(_message(file, writer.f_lineno))
            original(self, name, value)

        return set_attribute

    with patched(torch.Tensor, "__setattr__", wrap):
        yield


def _message(file: str, line: int) -> str:
    return (
        "Your model failed to export: torch.export drops assignments to tensor.data\n"
        f"  at {relative_path(file)}:{line}   {linecache.getline(file, line).strip()}\n"
        "  write the values in place: tensor.detach().copy_(values)"
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
