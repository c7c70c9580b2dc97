"""The platforms that libraries are compiled for, and this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

WHEELS = (
    "Linux x86-64 and aarch64 (glibc 2.28 or later), Linux x86-64 (musl), "
    "Windows x86-64, macOS 11 or later (arm64 and x86-64)"
)
"""The platforms whose wheels have kernels (``tools/make_wheels.py``)."""

# The processor in a library's header: e_machine of ELF, Machine of PE, cputype of Mach-O.
_ELF = {62: "x86_64", 183: "aarch64"}
_PE = {0x8664: "x86_64", 0xAA64: "aarch64"}
_MACH = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
_PROCESSORS = {"AMD64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}
"""Python's names of processors on Windows and macOS, and those on Linux."""


def platform_fault(path: Path, message: str) -> str:
    """Return why this machine cannot load a library; empty if the library is for this machine.

    Args:
        path: The file of the library.
        message: What the system's loader says about it.
    """
    newer = re.search(r"version [`']GLIBC_([\d.]+)' not found", message)
    if newer is not None:
        needed, present = newer[1], platform.libc_ver()[1]
        return f"{path.name} needs glibc {needed} or later, this machine has {present}"
    built_for, this = library_platform(path), this_platform()
    if built_for in ("", this):
        return ""
    return f"{path.name} is for {built_for}, this machine is {this}"


def check_complete(path: Path) -> None:
    """Raise an OSError if the end of a Linux library is missing, which loading does not survive."""
    with path.open("rb") as file:
        header = file.read(64)
    if header[:5] != b"\x7fELF\2" or len(header) < 64:
        return
    # e_shoff, e_shentsize and e_shnum: the section headers are the end of a linked library.
    (sections,) = struct.unpack("<Q", header[40:48])
    size_of_one, count = struct.unpack("<HH", header[58:62])
    size, whole = path.stat().st_size, sections + size_of_one * count
    if size < whole:
        raise OSError(f"{path.name} is incomplete: it has {size:,} of {whole:,} bytes")


def library_platform(path: Path) -> str:
    """Return the platform of a library, "Linux x86_64 (glibc)"; empty if it is unknown."""
    content = path.read_bytes()
    if content[:4] == b"\x7fELF":
        # A library names those that it needs: this is the name of glibc, musl has another.
        libc = "glibc" if b"\0libc.so.6\0" in content else "musl"
        return _named("Linux", _ELF, content[18:20], f" ({libc})")
    if content[:2] == b"MZ":
        # e_lfanew, the offset of the PE header, in which the processor follows a signature of 4
        # bytes.
        header = int.from_bytes(content[60:64], "little")
        return _named("Windows", _PE, content[header + 4 : header + 6])
    if content[:4] == b"\xcf\xfa\xed\xfe":
        return _named("macOS", _MACH, content[4:8])
    return ""


def this_platform() -> str:
    """Return the platform of this process, in the words of `library_platform`."""
    system, processor = platform.system(), platform.machine()
    processor = _PROCESSORS.get(processor, processor)
    if system != "Linux":
        return f"{system.replace('Darwin', 'macOS')} {processor}"
    return f"Linux {processor} ({platform.libc_ver()[0] or 'musl'})"


def _named(system: str, processors: dict[int, str], field: bytes, more: str = "") -> str:
    processor = processors.get(int.from_bytes(field, "little"), "")
    return processor and f"{system} {processor}{more}"


@contextlib.contextmanager
def mapped_blocks() -> Iterator[None]:
    """Make glibc map blocks of a MiB or more, which the system gets back when they are freed.

    onnxruntime frees a weight when it has packed it. What is freed inside of the heap stays
    resident: "Memory of a session" in docs/performance.md.
    """
    chosen = {"MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys()
    mallopt = None
    if sys.platform == "linux" and not chosen:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    map_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    mallopt(map_threshold, 1 << 20)
    try:
        yield
    finally:
        # To which glibc raises them itself when a block of 32 MiB is freed.
        mallopt(map_threshold, 32 << 20)
        mallopt(trim_threshold, 64 << 20)


_FEATURES = ("model name", "flags", "CPU part", "Features")


def processor_features() -> str:
    """Return what tells apart processors with other instructions.

    Compiled code and the layouts in which onnxruntime packs weights depend on them.
    """
    try:
        with Path("/proc/cpuinfo").open("rb") as file:
            lines = file.read(8192).decode(errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return f"{zlib.crc32('|'.join(x for x in lines if x.startswith(_FEATURES)).encode()):08x}"
