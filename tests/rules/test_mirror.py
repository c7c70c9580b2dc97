"""Tests mirror the tree: ``coreai_onnx/a/b.py`` is tested in ``tests/a/test_b.py``.

Exceptions: ``__init__.py`` and ``__main__.py``, which only name things; generated files, which
``test_generated.py`` keeps fresh. C++: ``custom_ops/<folder>/x.cc`` is tested in
``custom_ops/tests/<folder>/x_test.cc`` where it is math that runs without onnxruntime (``kernels``,
``memory``, ``simd``); ``ops`` and ``ort`` are tested through sessions, in
``tests/custom_ops/test_x.py``.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from tests.rules.tree import files, sources

ONLY_NAMES = ("__init__.py", "__main__.py")


def python_test_of(source: str) -> str:
    """Where the tests of a source file of the package live."""
    path = PurePosixPath(source).relative_to("coreai_onnx")
    return str(PurePosixPath("tests") / path.parent / f"test_{path.name}")


def test_every_python_source_has_its_test_file() -> None:
    there = set(files())
    missing = [
        f"{source} → {python_test_of(source)}"
        for source in sources(".py")
        if source.startswith("coreai_onnx/")
        and not source.endswith(ONLY_NAMES)
        and python_test_of(source) not in there
    ]
    assert not missing, "sources without a test file:\n" + "\n".join(missing)


def test_every_kernel_has_its_test_file() -> None:
    missing = [
        source
        for source in sources(".cc")
        if source.startswith(("custom_ops/kernels/", "custom_ops/memory/", "custom_ops/simd/"))
        and f"{source.replace('/', '/tests/', 1).removesuffix('.cc')}_test.cc" not in files()
    ]
    assert not missing, f"kernels without a <name>_test.cc under custom_ops/tests: {missing}"


def test_the_mirror_of_a_nested_file() -> None:
    assert python_test_of("coreai_onnx/lower/aten/reduce.py") == "tests/lower/aten/test_reduce.py"
    assert python_test_of("coreai_onnx/errors.py") == "tests/test_errors.py"
