"""Opsets and the onnxruntime releases that take them."""

from __future__ import annotations

from typing import Any

import pytest

from coreai_onnx.errors import StagingError
from coreai_onnx.targets.opsets import OPSETS, chosen_opset
from coreai_onnx.targets.releases import newest_opset, oldest_onnxruntime
from tests.rules.tree import REPO
from tests.support.uninstalled import run_uninstalled


@pytest.mark.parametrize(
    ("release", "opset"),
    [
        ("1.18", 21),
        ("1.20.1", 21),
        ("1.21", 22),
        ("1.22.1", 22),
        ("1.23", 23),
        ("1.24", 25),
        ("1.25", 26),
        ("1.31.1", 26),
        ("2.0", 26),
    ],
)
def test_what_a_release_takes(release: str, opset: int) -> None:
    assert newest_opset(release) == opset


def test_every_opset_has_an_oldest_release() -> None:
    for opset in OPSETS:
        assert newest_opset(oldest_onnxruntime(opset)) >= opset
    assert oldest_onnxruntime(18) == "1.18"
    assert oldest_onnxruntime(24) == "1.24"


@pytest.mark.parametrize("text", ["", "new", "1", "v1.22", 1.22, (1, 22)])
def test_what_is_no_version(text: Any) -> None:
    with pytest.raises(StagingError, match="must be a version"):
        newest_opset(text)


def test_a_release_that_takes_no_file() -> None:
    with pytest.raises(StagingError, match=r"must be 1\.18 or later, got 1\.17\.3"):
        newest_opset("1.17.3")


@pytest.mark.parametrize(
    ("opset", "release", "chosen"),
    [
        (None, None, 23),
        (18, None, 18),
        (26, None, 26),
        (None, "1.20", 21),
        (None, "1.31", 23),
        (20, "1.20", 20),
        (24, "1.24", 24),
    ],
)
def test_the_choice(opset: int | None, release: str | None, chosen: int) -> None:
    assert chosen_opset(opset, release) == chosen


@pytest.mark.parametrize(
    ("opset", "release", "chosen"), [(None, None, 18), (None, "1.24", 18), (20, None, 20)]
)
def test_the_choice_for_portable_files(opset: int | None, release: str | None, chosen: int) -> None:
    assert chosen_opset(opset, release, "portable") == chosen


@pytest.mark.parametrize("opset", [17, 27, 0])
def test_an_opset_out_of_range(opset: int) -> None:
    with pytest.raises(StagingError, match="18 to 26"):
        chosen_opset(opset, None)


def test_an_opset_that_a_release_does_not_take() -> None:
    with pytest.raises(StagingError, match=r"opset 23 needs onnxruntime 1\.23.*takes opset 22"):
        chosen_opset(23, "1.21")


def test_the_choice_of_a_target_imports_no_library() -> None:
    """The command line declares its options before it imports what is slow."""
    code = "import sys, coreai_onnx.targets.opsets; print(*sys.modules)"
    modules = run_uninstalled(code, folder=REPO, path=(REPO,)).stdout.split()
    assert "coreai_onnx.targets.opsets" in modules
    assert not {"torch", "onnx", "onnx_ir", "onnxruntime", "numpy"} & set(modules)
