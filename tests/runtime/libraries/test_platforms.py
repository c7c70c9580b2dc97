"""Libraries that this machine cannot load: the error says which platform they are for."""

from __future__ import annotations

import platform
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.libraries.library import ENVIRONMENT_VARIABLE
from coreai_onnx.runtime.libraries.platforms import (
    library_platform,
    platform_fault,
    this_platform,
)


def elf(machine: int, *names: str) -> bytes:
    """Return the beginning of a Linux library, and the names of its libraries."""
    strings = "\0".join(["", *names, ""]).encode()
    return b"\x7fELF" + bytes(14) + struct.pack("<H", machine) + bytes(44) + strings


def windows_library(machine: int = 0x8664) -> bytes:
    """Return the beginning of a Windows library."""
    return b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + struct.pack("<H", machine)


def macos_library(processor: int) -> bytes:
    """Return the beginning of a macOS library."""
    return struct.pack("<II", 0xFEEDFACF, processor)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (elf(62, "libc.so.6"), "Linux x86_64 (glibc)"),
        (elf(183, "libm.so.6", "libc.so.6"), "Linux aarch64 (glibc)"),
        (elf(62, "libc.so"), "Linux x86_64 (musl)"),
        (windows_library(), "Windows x86_64"),
        (windows_library(0xAA64), "Windows aarch64"),
        (macos_library(0x01000007), "macOS x86_64"),
        (macos_library(0x0100000C), "macOS aarch64"),
        (elf(243, "libc.so.6"), ""),
        (b"no library", ""),
        (b"", ""),
    ],
)
def test_the_platform_of_a_library(content: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_bytes(content)
    assert library_platform(path) == name
    expected = f"library is for {name}, this machine is {this_platform()}"
    assert platform_fault(path, "") == ("" if name in ("", this_platform()) else expected)


@pytest.mark.parametrize(
    ("system", "machine", "libc", "name"),
    [
        ("Linux", "x86_64", "glibc", "Linux x86_64 (glibc)"),
        ("Linux", "x86_64", "", "Linux x86_64 (musl)"),
        ("Windows", "AMD64", "", "Windows x86_64"),
        ("Darwin", "arm64", "", "macOS aarch64"),
    ],
)
def test_this_platform(
    system: str, machine: str, libc: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    assert this_platform() == name


def test_an_older_glibc(tmp_path: Path) -> None:
    message = "/lib/libc.so.6: version `GLIBC_2.99' not found (required by /x/ops.so)"
    fault = f"ops.so needs glibc 2.99 or later, this machine has {platform.libc_ver()[1]}"
    assert platform_fault(tmp_path / "ops.so", message) == fault


def foreign_library(folder: Path) -> Path:
    path = folder / "ops.so"
    path.write_bytes(elf(62 if platform.machine() == "aarch64" else 183, "libc.so.6"))
    return path


def test_sessions_name_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = foreign_library(tmp_path)
    x = torch.randn(2, 8)
    program = coreai_onnx.convert(torch.nn.LayerNorm(8).eval(), (x,))
    with pytest.raises(SessionError) as of_user:
        program.session(custom_ops=[path])
    assert str(of_user.value) == platform_fault(path, "")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
    with pytest.raises(SessionError) as of_package:
        program.session(kernels=True)
    assert str(of_package.value).startswith(f"{platform_fault(path, '')}\n  install the wheel of")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (y,) = program.session(kernels=None).run(x)
    assert platform_fault(path, "") in str(caught[0].message)
    torch.testing.assert_close(torch.from_numpy(y), torch.nn.LayerNorm(8)(x).detach())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "file too short"),
        (b"no library", "file too short"),
        (b"cut", "is incomplete: it has 100,000 of"),  # dlopen ends the process with SIGBUS
    ],
)
def test_a_damaged_library_is_named_with_what_works_instead(
    content: bytes, says: str, kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ops.so"
    path.write_bytes(kernels.read_bytes()[:100_000] if content == b"cut" else content)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
    program = coreai_onnx.convert(torch.nn.LayerNorm(8).eval(), (torch.randn(2, 8),))
    with pytest.raises(SessionError) as of_package:
        program.session(kernels=True)
    assert says in str(of_package.value)
    assert "kernels=False" in str(of_package.value).splitlines()[-1]
    with pytest.raises(SessionError, match=says):
        program.session(custom_ops=[path], kernels=False)
    with pytest.warns(RuntimeWarning, match=says):
        program.session(kernels=None)


IS_MAPPED = """
import ctypes
from coreai_onnx.runtime.libraries.platforms import mapped_blocks

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def is_mapped():
    block = libc.malloc(ctypes.c_size_t(2 << 20))
    size_and_flags = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t))
    mapped = bool(size_and_flags.value & 2)  # IS_MMAPPED of glibc's malloc.c
    libc.free(block)
    return mapped

with mapped_blocks():
    assert is_mapped()
assert not is_mapped()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_blocks_are_mapped_inside_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    # In a process of its own: the heap of this one may have a free block of that size.
    subprocess.run([sys.executable, "-c", IS_MAPPED], check=True)
