"""The error of a model file, with the line that caused it."""

from __future__ import annotations

from pathlib import Path
from types import CodeType, FrameType


class BuildError(ValueError):
    """The model file asks for something that ONNX does not have; names the file and the line."""


class CallError(ValueError):
    """The arguments of a call are not those that the model takes."""


def failure(where: FrameType | CodeType, what: str) -> BuildError:
    """Return an error at the line that a frame executes, or where a function begins."""
    return BuildError(f"{place(where)}: {what}")


def place(where: FrameType | CodeType) -> str:
    """Return file and line, ``model.py:41``."""
    if isinstance(where, CodeType):
        return f"{Path(where.co_filename).name}:{where.co_firstlineno}"
    return f"{Path(where.f_code.co_filename).name}:{where.f_lineno}"
