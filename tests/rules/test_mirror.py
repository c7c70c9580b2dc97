"""Tests mirror the folders: what is in ``coreai_onnx/a`` is tested in ``tests/a``.

A test file is about a behavior, so it may test several source files; a source file that has a test
file of its own name has it in the mirrored folder. C++: ``custom_ops/<folder>/x.cc`` is tested in
``custom_ops/tests/<folder>/x_test.cc`` where it is math that runs without onnxruntime (``kernels``,
``memory``, ``simd``); ``ops`` and ``ort`` are tested through sessions, in
``tests/custom_ops/test_x.py``.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from tests.rules.tree import files, sources, text

ABOUT_NO_FOLDER = {
    "backend", "compat", "custom_ops", "docs", "examples", "models", "netron", "rules", "support",
    "tools",
}  # fmt: skip
"""Folders of ``tests`` that are about the whole project or other parts of it."""
KERNEL = re.compile(r"^\w+Kernel Find\w+\(Target\b", re.MULTILINE)
"""The declaration of a kernel in C++."""


def source_folders() -> set[PurePosixPath]:
    """Return the folders of the package that have code, relative to it."""
    return {
        PurePosixPath(name).parent.relative_to("coreai_onnx")
        for name in sources(".py")
        if name.startswith("coreai_onnx/") and not name.endswith("__init__.py")
    }


def folders_of_tests() -> set[PurePosixPath]:
    """Return the folders of ``tests`` that have test files, relative to it."""
    return {
        PurePosixPath(name).parent.relative_to("tests")
        for name in files()
        if name.startswith("tests/") and PurePosixPath(name).match("test_*.py")
    }


def test_every_folder_of_the_package_has_tests() -> None:
    assert not source_folders() - folders_of_tests()


def test_every_folder_of_tests_is_about_a_folder_of_the_package() -> None:
    folders = {
        path for path in folders_of_tests() if path.parts and path.parts[0] not in ABOUT_NO_FOLDER
    }
    parents = {parent for folder in source_folders() for parent in (folder, *folder.parents)}
    assert not folders - parents


def test_every_kernel_has_its_test_file() -> None:
    """Kernels are declared in headers; the .cc named after its folder may compile several."""
    kernels = [name for name in sources(".h") if KERNEL.search(text(name))]
    kernels += [
        name
        for name in sources(".cc")
        if name.startswith(("custom_ops/kernels/", "custom_ops/memory/", "custom_ops/simd/"))
        and PurePosixPath(name).stem != PurePosixPath(name).parent.name
    ]
    assert len(kernels) > 20
    missing = [
        name
        for name in kernels
        if f"{name.replace('/', '/tests/', 1).rpartition('.')[0]}_test.cc" not in files()
    ]
    assert not missing, f"kernels without a <name>_test.cc under custom_ops/tests: {missing}"
