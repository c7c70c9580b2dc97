"""The platforms of the wheels, and what the checks find in a faulty one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from packaging.tags import Tag, parse_tag
from packaging.utils import parse_wheel_filename

from coreai_onnx.runtime.libraries.platforms import WHEELS
from tests.rules.tree import REPO
from tools.make_wheels import (
    EXPORTS,
    LARGEST,
    PLATFORMS,
    REQUIREMENTS,
    Library,
    Platform,
    audit_faults,
    faults_of,
    parse_library,
    platform_description,
)

BY_TAG = {platform.tag: platform for platform in PLATFORMS}
LINUX = BY_TAG["manylinux_2_28_x86_64"]

ELF = """
File: checked/libcoreai_onnx_ops.so
Format: elf64-x86-64
Arch: x86_64
AddressSize: 64bit
LoadName: libcoreai_onnx_ops.so
NeededLibraries [
  ld-linux-x86-64.so.2
  libc.so.6
  libm.so.6
]
"""
COFF = """
File: coreai_onnx_ops.dll
Format: COFF-x86-64
Arch: x86_64
AddressSize: 64bit
NeededLibraries [
  KERNEL32.dll
  api-ms-win-crt-heap-l1-1-0.dll
]
"""
COFF_EXPORTS = """
Export {
  Ordinal: 1
  Name: CoreaiOnnxOpsInfo
  RVA: 0x1000
}
Export {
  Ordinal: 2
  Name: RegisterCustomOps
  RVA: 0x1010
}
"""
MACHO = """
File: lib/libcoreai_onnx_ops.dylib
Format: Mach-O arm64
Arch: aarch64
AddressSize: 64bit
NeededLibraries [
  /usr/lib/libSystem.B.dylib
  libcoreai_onnx_ops.dylib
]
"""
GOOD = {
    "manylinux_2_28_x86_64": (ELF, "CoreaiOnnxOpsInfo\nRegisterCustomOps\n"),
    "win_amd64": (COFF, COFF_EXPORTS),
    "macosx_11_0_arm64": (MACHO, "_CoreaiOnnxOpsInfo\n_RegisterCustomOps\n"),
}


def good_library() -> Library:
    return parse_library(*GOOD[LINUX.tag])


@pytest.mark.parametrize("tag", GOOD)
def test_a_good_library_has_no_faults(tag: str) -> None:
    library = parse_library(*GOOD[tag])
    assert library.exports == EXPORTS
    assert faults_of(BY_TAG[tag], LARGEST, library) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"format": "elf64-littleaarch64"}, "the library is elf64-littleaarch64, expected elf64-"),
        ({"exports": frozenset({"RegisterCustomOps"})}, "exports ['RegisterCustomOps'], expected"),
        ({"exports": frozenset({*EXPORTS, "_Znwm"})}, "'_Znwm'], expected"),
        ({"needed": frozenset({"libc.so.6", "libstdc++.so.6"})}, "needs libstdc++.so.6, which"),
        ({"needed": frozenset({"libc.so"})}, "needs libc.so, which not every system has"),
    ],
)
def test_a_faulty_library_is_found(change: dict, fault: str) -> None:
    (message,) = faults_of(LINUX, 1000, replace(good_library(), **change))
    assert fault in message


def test_only_macos_may_export_what_its_linker_cannot_hide() -> None:
    symbols = "_CoreaiOnnxOpsInfo\n_RegisterCustomOps\n__Znwm\n__ZdaPvm\n___dso_handle\n"
    library = parse_library(MACHO, symbols)
    macos = BY_TAG["macosx_11_0_arm64"]
    assert faults_of(macos, 1, library) == []
    assert faults_of(macos, 1, replace(library, exports=library.exports | {"_ZNSt3__1"}))
    assert faults_of(LINUX, 1, replace(good_library(), exports=library.exports))


def test_a_large_wheel_is_found() -> None:
    (message,) = faults_of(LINUX, LARGEST + 1, good_library())
    assert message == "4,194,305 bytes, at most 4,194,304 are allowed"


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("manylinux_2_28_x86_64", True),
        ("manylinux_2_5_x86_64", True),
        ("manylinux_2_29_x86_64", False),
        ("manylinux_3_1_x86_64", False),
        ("manylinux_2_28_aarch64", False),
        ("musllinux_1_2_x86_64", False),
        ("linux_x86_64", False),
    ],
)
def test_what_auditwheel_says(tag: str, fits: bool) -> None:
    report = f'x.whl is consistent with\nthe following platform tag: "{tag}".\nThe wheel …'
    faults = audit_faults(LINUX.tag, report)
    assert not faults if fits else tag in faults[0]


def test_every_platform_has_a_tag_that_pip_knows() -> None:
    for platform in PLATFORMS:
        name, _, _, tags = parse_wheel_filename(f"x-1-py3-none-{platform.tag}.whl")
        assert (name, tags) == ("x", {Tag("py3", "none", platform.tag)})
    assert len(BY_TAG) == len({p.target for p in PLATFORMS}) == 6


def test_the_description_of_a_wheel_has_its_tag() -> None:
    pure = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    text = platform_description(pure, "win_amd64")
    assert text == pure.replace("true", "false").replace("any", "win_amd64")
    (tag,) = parse_tag(text.split()[-1])
    assert tag.platform == "win_amd64"


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda p: p.tag)
def test_documents_and_errors_list_the_platforms(platform: Platform) -> None:
    assert f"`{platform.tag}`" in (REPO / "docs" / "installation.md").read_text()
    system = {"Darwin": "macOS"}.get(platform.system, platform.system)
    processor = re.sub("x86_64|AMD64", "x86-64", platform.processor)
    parts = re.findall(rf"{system}.*?(?=Linux|Windows|macOS|$)", WHEELS)
    assert any(processor in part for part in parts)


def test_the_tools_are_pinned() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert {line.partition("==")[0] for line in lines} >= {"cmake", "ninja", "wheel", "ziglang"}
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in lines)
