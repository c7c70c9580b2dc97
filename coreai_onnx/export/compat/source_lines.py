"""Attributes every guard that torch adds while it traces to a line of the model."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coreai_onnx.export.compat.patches import patched
from coreai_onnx.export.compat.torch_names import ShapeEnv, uninteresting_files
from coreai_onnx.export.versions import is_torch

_LOCATES = "_get_sloc"
"""The method of ``ShapeEnv`` that returns the source location of a guard."""
_OURS = str(Path(__file__).parent) + os.sep


@contextmanager
def user_lines() -> Iterator[list[ShapeEnv]]:
    """While active, every guard of an export records the line of the model that led to it.

    If torch lacks the patched method, guards keep the locations that torch records.

    Yields:
        The shape environments in which guards were added, the latest last.
    """
    seen: list[ShapeEnv] = []

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_sloc(self: ShapeEnv, framework_loc: str | None = None) -> Any:
            if all(env is not self for env in seen):
                seen.append(self)
            sloc = original(self, framework_loc)
            # The caller has named the location, and torch looks for no frame.
            if framework_loc is not None:
                return sloc
            line = sloc.maybe_user_loc or _line_of_the_model()
            return replace(sloc, framework_loc=_innermost(), maybe_user_loc=line)

        return get_sloc

    if not hasattr(ShapeEnv, _LOCATES):
        yield seen
        return
    with patched(ShapeEnv, _LOCATES, wrap):
        yield seen


def _innermost() -> traceback.FrameSummary | None:
    """Return the line that adds a guard, as torch finds it without this package's frames."""
    frame = inspect.currentframe()
    passed_over = uninteresting_files()
    while frame is not None and _is_between(frame.f_code.co_filename, passed_over):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    return traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name)


def _is_between(file: str, uninteresting: set[str]) -> bool:
    return file in uninteresting or file.startswith(_OURS)


def _line_of_the_model() -> str | None:
    """Return the innermost line outside torch among the frames that torch.export called."""
    frame = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        # Frames further out called the export: they are not part of the model.
        if file.endswith("torch/export/_trace.py"):
            return None
        if not (is_torch(file) or file.startswith(_OURS)):
            return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None
