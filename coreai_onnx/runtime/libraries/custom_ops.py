"""Custom op libraries of the user, registered beside the kernels of this package."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Protocol, runtime_checkable

import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.model.dependencies import UNKNOWN_OP


@runtime_checkable
class HasLibrary(Protocol):
    """Kernels that were compiled: anything that has a library and knows what it implements."""

    @property
    def library(self) -> Path:
        """The file of the library."""

    def mismatch(self, model: ir.Model) -> str:
        """Return why the library must not run a model; empty if it may."""


CustomOps = str | PathLike[str] | HasLibrary
"""A custom op library: its file, or kernels of `coreai_onnx.kernel`."""


def library_paths(custom_ops: Sequence[CustomOps]) -> list[Path]:
    """Return the files of custom op libraries, absolute.

    Raises:
        SessionError: If one is not a file.
    """
    # A str is a sequence as well: each of its characters would be taken for a library.
    if isinstance(custom_ops, str | PathLike | HasLibrary):
        raise SessionError(f"custom_ops is {custom_ops!r}; give a list of libraries")
    return [_library_path(one) for one in custom_ops]


def _library_path(one: CustomOps) -> Path:
    if not isinstance(one, str | PathLike | HasLibrary):
        raise SessionError(
            f"{one!r} is no custom op library; give its file, or what coreai_onnx.kernel returned"
        )
    path = one.library if isinstance(one, HasLibrary) else Path(fspath(one)).expanduser()
    if not path.is_file():
        raise SessionError(f"{path}: no such custom op library")
    # dlopen searches the system's folders for a name without a slash.
    return path.resolve()


def register_libraries(options: ort.SessionOptions, paths: Sequence[Path]) -> None:
    """Register custom op libraries with session options.

    Raises:
        SessionError: If onnxruntime cannot load one, or it exports no ``RegisterCustomOps``.
    """
    for path in paths:
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:  # onnxruntime's exceptions share no base class below Exception
            raise SessionError(
                f"onnxruntime {ort.__version__} cannot register the custom ops in {path}\n  {error}"
            ) from error


def check_kernels(custom_ops: Sequence[CustomOps], model: ir.Model) -> None:
    """Raise a SessionError if a kernel of the user must not run a model."""
    for one in custom_ops:
        wrong = one.mismatch(model) if isinstance(one, HasLibrary) else ""
        if wrong:
            raise SessionError(wrong)


def advice_for_unknown_op(message: str) -> str:
    """Return what to do if onnxruntime's message says that an op is unknown; empty otherwise."""
    found = UNKNOWN_OP.pattern.search(message)
    if found is None:
        return ""
    return (
        f"\n  the model calls {found['domain']}::{found['op']}, which a custom op library "
        'implements: open it with session(custom_ops=["lib….so"]), on the command line with '
        "--library"
    )
