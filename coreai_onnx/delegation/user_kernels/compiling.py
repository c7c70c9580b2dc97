"""Finds a compiler, and compiles the sources of a kernel to a library, cached by its contents."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path

from coreai_onnx.composites import Composite, domain_of
from coreai_onnx.delegation.user_kernels.cpp_schema import composite_lines, prologue
from coreai_onnx.errors import KernelError, ToolchainError
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.runtime.libraries.platforms import processor_features
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


Source = str | PathLike[str]
"""A C++ file, or its text: a string of more than one line."""

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    # Several kernels in a process must not see the symbols of each other.
    "-fvisibility=hidden",
    # Without it, GCC cannot vectorize sqrt, which might set errno.
    "-fno-math-errno",
    "-fno-trapping-math",  # vectorizes selections
    # GCC contracts by default: results would depend on whether the flags admit FMA.
    "-ffp-contract=off",
)
# onnxruntime unloads a library with its last session, but the library keeps its ops.
_LINKER = () if sys.platform == "darwin" else ("-Wl,--no-undefined", "-Wl,-z,nodelete")
_SHARED = ("-shared", "-pthread", *_LINKER)
_MOST_LINES = 40
"""Lines of the compiler's output in an error: the first error is the important one."""


def compiled(composite: Composite, sources: Sequence[Source], flags: Sequence[str]) -> Path:
    """Return the custom op library of a kernel, compiled unless the cache has it.

    The key of the cache is a hash of the preprocessed sources, the declaration, the flags and the
    compiler. A library appears there complete or not at all.

    Args:
        composite: The declaration.
        sources: The C++ sources; one of them uses ``COREAI_KERNEL``.
        flags: Further options of the compiler.

    Raises:
        KernelError: If a source is missing or does not compile; the message is the compiler's.
        ToolchainError: If there is no compiler, or onnxruntime's headers are missing.
    """
    tool, headers, kit = compiler(), onnxruntime_headers(), kit_folder()
    folder = cache_folder() / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [_file(source, folder) for source in sources]
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as place:
            header = Path(place) / "declaration.h"
            header.write_text(declaration_header(composite), encoding="utf-8")
            includes = [f"-I{place}", f"-I{kit}", "-isystem", str(headers)]
            command = [tool, *_FLAGS, *includes, *flags]
            # Compiled with each kernel: it registers the op by the generated declaration.
            files.append(kit / "kit" / "registration.cc")
            target = folder / f"lib{composite.name}-{_key(command, files, tool, flags)}.so"
            if not target.is_file():
                # Beside the target, because a rename is atomic within one file system only.
                built = Path(place) / target.name
                _run([*command, *_SHARED, *map(str, files), "-o", str(built)])
                built.replace(target)
            return target
    except OSError as error:
        raise KernelError(f"cannot compile {composite.name} in {folder}: {error}") from error


def declaration_header(composite: Composite) -> str:
    """Return the header with the declaration, which ``kit/kernel.h`` includes."""
    shaped = sum(1 << i for i, dims in enumerate(composite.output_dims) if dims == "*")
    lines = [
        prologue(domain_of(composite)),
        *composite_lines(composite),
        "}  // namespace coreai::schema",
        "namespace coreai::declared {",
        f"using namespace schema::{composite.name};",
        f"inline constexpr unsigned kShapedOutputs = {shaped};",
        "}  // namespace coreai::declared",
        "",
    ]
    return "\n".join(lines)


def _file(source: Source, folder: Path) -> Path:
    """Return the file of a source; text is stored in a file named by its hash."""
    text = source if isinstance(source, str) else ""
    if "\n" in text:
        # A file that stays: messages of the compiler and debuggers refer to it.
        place = folder / "sources" / hashlib.sha256(text.encode()).hexdigest()[:16]
        place.mkdir(parents=True, exist_ok=True)
        with all_or_nothing() as files:
            files.create(place / "kernel.cc").write(text.encode())
        return place / "kernel.cc"
    path = Path(fspath(source)).expanduser().resolve()
    if not path.is_file():
        raise KernelError(f"{path}: no such source; give a file, or the text of a kernel")
    return path


def _key(command: Sequence[str], files: Sequence[Path], tool: str, flags: Sequence[str]) -> str:
    """Return a hash of everything that the library depends on."""
    digest = hashlib.sha256(repr((_FLAGS, _SHARED, tuple(flags))).encode())
    # An update of the compiler keeps its path.
    digest.update(_run([tool, "--version"]))
    # With -march=native, a cache on a shared disk serves machines with different instruction sets.
    if any("native" in flag for flag in flags):
        digest.update(processor_features().encode())
    for file in files:
        # Preprocessed, so that a change of any included header counts; -P leaves out the paths.
        digest.update(_run([*command, "-E", "-P", str(file)]))
    return digest.hexdigest()[:20]


def _run(command: Sequence[str]) -> bytes:
    """Run the compiler and return its output.

    Raises:
        KernelError: If the compiler fails.
    """
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - the compiler
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").splitlines()
        shown = said[:_MOST_LINES] + ["…"] * (len(said) > _MOST_LINES)
        raise KernelError("the kernel does not compile\n" + "\n".join(f"  {x}" for x in shown))
    return done.stdout
