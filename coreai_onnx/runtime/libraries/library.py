"""Libraries of kernels: those of this package, of onnxruntime-extensions, and of the user."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import onnxruntime as ort

from coreai_onnx.errors import KernelsNotBuiltError, SessionError
from coreai_onnx.model.dependencies import UNKNOWN_OP
from coreai_onnx.runtime.libraries.platforms import WHEELS, check_complete, platform_fault

if TYPE_CHECKING:  # a session may run without it: see docs/memory.md
    import onnx_ir as ir

ENVIRONMENT_VARIABLE = "COREAI_ONNX_OPS"
"""Environment variable with the path of a kernel library to use instead of the installed one."""

REINSTALL = (
    "  install the wheel of this machine: "
    "pip install --force-reinstall --no-deps coreai-onnx-bridge\n"
    "  until then use kernels=False: the same model runs on its function bodies"
)
"""What to do with a kernel library that this machine cannot load."""

LONGEST_SETTING = 8192
"""The most characters that onnxruntime takes as the value of a session's setting."""
_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
EXTENSIONS = "pip install onnxruntime-extensions"
LIBRARY_NAME = ("" if sys.platform == "win32" else "lib") + "coreai_onnx_ops" + _SUFFIX

_RUNTIME = Path(__file__).resolve().parents[1]
_INSTALLED = _RUNTIME / "lib"
_CHECKOUT = _RUNTIME.parent.parent


def ops_library_path() -> Path:
    """Return the path of the kernel library, for ``SessionOptions.register_custom_ops_library``.

    The search order is: the file named by the environment variable ``COREAI_ONNX_OPS``; the library
    installed with the package; ``build/ops`` of a source checkout.

    Raises:
        KernelsNotBuiltError: If there is no library; the message says how to get one.
    """
    override = os.environ.get(ENVIRONMENT_VARIABLE)
    if override:
        path = Path(override).expanduser()
        # A wrong path is an error: another library would run without the user's knowledge.
        if path.is_file():
            return path.resolve()
        raise KernelsNotBuiltError(
            f"{ENVIRONMENT_VARIABLE}={override} does not name a file\n"
            "  set it to the kernel library, or unset it to use the installed one"
        )
    for candidate in _candidates():
        if candidate.is_file():
            return candidate
    foreign = sorted(_INSTALLED.glob("*coreai_onnx_ops.*"))
    if foreign:  # a folder of packages that was copied, or installed with `pip --platform`
        raise KernelsNotBuiltError(f"{platform_fault(foreign[0], '')}\n{REINSTALL}")
    looked = "\n".join(f"    {candidate}" for candidate in _candidates())
    raise KernelsNotBuiltError(
        f"the kernels are not built: {LIBRARY_NAME} is in none of\n{looked}\n{_advice()}\n"
        "  until then use kernels=False: the same model runs on its function bodies"
    )


def kernels_built() -> bool:
    """Return whether `ops_library_path` finds a library."""
    try:
        ops_library_path()
    except KernelsNotBuiltError:
        return False
    return True


def _candidates() -> Iterator[Path]:
    yield _INSTALLED / LIBRARY_NAME
    if _in_checkout():
        yield _CHECKOUT / "build" / "ops" / LIBRARY_NAME


def _in_checkout() -> bool:
    # In an installed package this is site-packages, where a folder `build` is somebody else's.
    return (_CHECKOUT / "custom_ops" / "CMakeLists.txt").is_file()


def _advice() -> str:
    if _in_checkout():
        return (
            f"  in {_CHECKOUT} run  make build\n"
            "  (it needs a C++17 compiler, and finds the rest by itself)"
        )
    return (
        f"  wheels with kernels exist for {WHEELS}\n"
        "  elsewhere install a C++17 compiler, then reinstall the package and read what its build "
        "says:\n"
        "    pip install --force-reinstall --no-deps --verbose coreai-onnx-bridge\n"
        f"  or set {ENVIRONMENT_VARIABLE} to a library built elsewhere"
    )


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
            f"{one!r} is not a custom op library: give its file or the result of coreai_onnx.kernel"
        )
    path = one.library if isinstance(one, HasLibrary) else Path(fspath(one)).expanduser()
    if not path.is_file():
        raise SessionError(f"{path}: no such custom op library")
    # dlopen searches the system's folders for a name without a slash.
    return path.resolve()


def register_kernels(
    options: ort.SessionOptions, op_types: list[str] | None, *, kernels: bool | None
) -> bool:
    """Register the kernel library if it is requested; return whether it is registered.

    Args:
        options: The options to register the library with.
        op_types: The composites of the model. Only their kernels are registered, because
            onnxruntime creates a schema for each one whenever a session is created, which takes
            0.16 s for all (python -m tests.custom_ops.many_sessions). None registers all.
        kernels: As for `session`.
    """
    if kernels is False or (kernels is None and not kernels_built()):
        return False
    path = ops_library_path()
    # An empty entry is one that was not set; a comma names no op type.
    called = ",".join(op_types or ()) or ","
    if op_types is not None and len(called) <= LONGEST_SETTING:
        options.add_session_config_entry("coreai.op_types", called)
    try:
        check_complete(path)
        options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's exceptions share no base class below Exception
        message = platform_fault(path, str(error)) or (
            f"onnxruntime {ort.__version__} cannot register the kernels in {path}\n  {error}"
        )
        message += f"\n{REINSTALL}"
        if kernels:
            raise SessionError(message) from error
        warnings.warn(
            f"{message}\n  the function bodies are used instead", RuntimeWarning, stacklevel=4
        )
        return False
    return True


def register_libraries(options: ort.SessionOptions, paths: Sequence[Path]) -> None:
    """Register custom op libraries with session options.

    Raises:
        SessionError: If onnxruntime cannot load one, or it exports no ``RegisterCustomOps``.
    """
    for path in paths:
        try:
            check_complete(path)
            options.register_custom_ops_library(str(path))
        except Exception as error:  # onnxruntime's exceptions share no base class below Exception
            raise SessionError(
                platform_fault(path, str(error))
                or f"onnxruntime {ort.__version__} cannot register the custom ops in {path}\n"
                f"  {error}"
            ) from error


def check_kernels(custom_ops: Sequence[CustomOps], model: ir.Model) -> None:
    """Raise a SessionError if a kernel of the user must not run a model."""
    for one in custom_ops:
        wrong = one.mismatch(model) if isinstance(one, HasLibrary) else ""
        if wrong:
            raise SessionError(wrong)


def advice_for_unknown_op(message: str) -> str:
    """Return what to do if onnxruntime's message says that an op is unknown; empty otherwise."""
    unknown = UNKNOWN_OP.pattern.search(message)
    if unknown is None:
        return ""
    return (
        f"\n  the model calls {unknown['domain']}::{unknown['op']}, which a custom op library "
        'implements: open it with session(custom_ops=["lib….so"]), on the command line with '
        "--library"
    )


def extensions_path() -> Path:
    """Return the path of the library, for ``SessionOptions.register_custom_ops_library``.

    Raises:
        SessionError: If onnxruntime-extensions is not installed.
    """
    try:
        import onnxruntime_extensions
    except ImportError as error:
        raise SessionError(f"onnxruntime-extensions is not installed: {EXTENSIONS}") from error
    return Path(onnxruntime_extensions.get_library_path())
