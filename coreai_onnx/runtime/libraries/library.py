"""Location of the native kernel library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from coreai_onnx.errors import KernelsNotBuiltError

ENVIRONMENT_VARIABLE = "COREAI_ONNX_OPS"
"""Environment variable with the path of a kernel library to use instead of the installed one."""

_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
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
        "  install a C++17 compiler, then reinstall the package and read what its build says:\n"
        "    pip install --force-reinstall --no-deps --verbose coreai-onnx-bridge\n"
        f"  or set {ENVIRONMENT_VARIABLE} to a library built elsewhere"
    )
