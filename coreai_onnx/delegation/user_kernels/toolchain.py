"""The compiler, the header kit and onnxruntime's headers on this machine."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from coreai_onnx.errors import ToolchainError
from coreai_onnx.targets.releases import OLDEST_TESTED, text_of

INCLUDE_VARIABLE = "ONNXRUNTIME_INCLUDE_DIR"
"""Environment variable with the folder of ``onnxruntime_c_api.h``."""
CACHE_VARIABLE = "COREAI_ONNX_CACHE"
"""Environment variable with the folder of compiled kernels and unpacked headers."""

_HEADER = "onnxruntime_c_api.h"
_API_VERSION = re.compile(r"^#define ORT_API_VERSION (\d+)", re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parents[2]
_INSTALLED_KIT = Path(__file__).resolve().parent / "cpp"
_CHECKOUT_KIT = _PACKAGE.parent / "custom_ops"
# Packages of systems and release archives put the header into different folders.
_SUFFIXES = ("", "onnxruntime", "onnxruntime/core/session")


def cache_folder() -> Path:
    """Return the folder for compiled kernels: of ``COREAI_ONNX_CACHE``, or the user's cache."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "coreai_onnx"


def compiler() -> str:
    """Return the C++ compiler: of the environment variable ``CXX``, or the system's.

    Raises:
        ToolchainError: If no compiler is found.
    """
    # As make and cmake: a compiler that is named is the only candidate.
    chosen = os.environ.get("CXX")
    names = (chosen,) if chosen else ("c++", "g++", "clang++")
    tool = next((path for name in names if (path := shutil.which(name))), None)
    if tool is None:
        raise ToolchainError(
            f"there is no C++ compiler ({', '.join(names)})\n"
            "  install one with C++17 (g++ or clang++), or set CXX to its path"
        )
    return tool


def kit_folder() -> Path:
    """Return the folder of the header kit, ``kit/kernel.h``."""
    return next(f for f in (_INSTALLED_KIT, _CHECKOUT_KIT) if (f / "kit" / "kernel.h").is_file())


def onnxruntime_headers() -> Path:
    """Return the folder of onnxruntime's C header, of API version 21 or later.

    Raises:
        ToolchainError: If no header is found; the message says how to get it without being root.
    """
    looked = []
    for folder in _include_folders():
        header = folder / _HEADER
        if header.is_file():
            version = _API_VERSION.search(header.read_text(encoding="utf-8", errors="replace"))
            # An older header lacks functions of the C API that the kit calls.
            if version and int(version[1]) >= OLDEST_TESTED[1]:
                return folder
            looked.append(f"    {folder}: its API is older than version {OLDEST_TESTED[1]}")
    chosen = os.environ.get(INCLUDE_VARIABLE)
    if chosen and not (Path(chosen) / _HEADER).is_file():
        looked.append(f"    {INCLUDE_VARIABLE}={chosen}: no {_HEADER} there")
    raise ToolchainError("\n".join([_no_headers(), *looked]))


def _include_folders() -> Iterator[Path]:
    chosen = os.environ.get(INCLUDE_VARIABLE)
    if chosen:
        yield Path(chosen).expanduser()
    # Wheels bring the header; the others serve checkouts and packages of systems.
    yield _PACKAGE / "runtime" / "include"
    if _CHECKOUT_KIT.is_dir():
        pattern = "build/*/debian-headers/usr/include/onnxruntime"
        yield from sorted(_PACKAGE.parent.glob(pattern))
    roots = [cache_folder() / "headers/usr/include", Path(sys.prefix) / "include"]
    conda = os.environ.get("CONDA_PREFIX")
    roots += [Path(conda) / "include"] if conda else []
    roots += [Path("/usr/include"), Path("/usr/local/include"), Path("/opt/homebrew/include")]
    yield from (root / suffix for root in roots for suffix in _SUFFIXES)


def _no_headers() -> str:
    script = kit_folder() / "cmake" / "fetch_debian_headers.sh"
    return (
        f"there is no {_HEADER} of onnxruntime {text_of(OLDEST_TESTED)} or later, "
        "which a kernel is compiled with\n"
        "  Python's onnxruntime does not contain it. Get it in one of these ways:\n"
        "    on Debian, also without root:\n"
        f"      sh {script} {cache_folder() / 'headers'} libonnxruntime-dev\n"
        "    with conda: conda install -c conda-forge onnxruntime-cpp\n"
        "    with Homebrew: brew install onnxruntime\n"
        f"    from a release archive of onnxruntime: set {INCLUDE_VARIABLE} to its include folder"
    )
