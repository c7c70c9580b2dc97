"""Compiles the sources of a kernel to a custom op library, which is cached by its contents."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from coreai_onnx.composites import Composite, domain_of
from coreai_onnx.delegation.user_kernels.cpp_schema import composite_lines, prologue
from coreai_onnx.delegation.user_kernels.toolchain import (
    cache_folder,
    compiler,
    kit_folder,
    onnxruntime_headers,
)
from coreai_onnx.errors import KernelError
from coreai_onnx.model.files.new_files import all_or_nothing

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
        digest.update(_processor())
    for file in files:
        # Preprocessed, so that a change of any included header counts; -P leaves out the paths.
        digest.update(_run([*command, "-E", "-P", str(file)]))
    return digest.hexdigest()[:20]


def _processor() -> bytes:
    """Return what identifies the instruction set of this machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_bytes().splitlines() if info.is_file() else [platform.processor().encode()]
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), lines[0])


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
