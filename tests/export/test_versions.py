"""Tests of the versions of torch that are tested, and which source files are whose."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path

import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import CoreaiError
from coreai_onnx.export.versions import (
    TESTED,
    is_torch,
    is_users,
    lacks,
    refusal_after,
    relative_path,
    warn_if_untested,
)
from tests.rules.tree import REPO


@pytest.mark.parametrize("version", ["2.11.0", "2.14.0", "2.16.0", "2.130.0", "3.0.0"])
def test_other_versions_warn(version: str) -> None:
    with pytest.warns(UserWarning, match=r"tested with torch 2\.12, 2\.13 and 2\.15, this is"):
        warn_if_untested(version)


@pytest.mark.parametrize("version", ["2.12.1+cu130", "2.13.0+cpu", "2.15.0", torch.__version__])
def test_tested_versions_do_not(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested(version)


def test_all_tested_versions_can_be_installed() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    (bounds,) = (d for d in project["dependencies"] if d.startswith("torch"))
    low, high = re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", bounds).groups()  # type: ignore[union-attr]
    minors = [int(version.partition(".")[2]) for version in TESTED]
    assert (min(minors), max(minors) + 1) == (int(low), int(high))


def test_what_a_torch_lacks_is_an_import_error_that_says_what_to_install() -> None:
    error = lacks("cannot import name 'x' from 'torch' (/lib/torch/__init__.py)")
    assert isinstance(error, CoreaiError)
    assert isinstance(error, ImportError)
    assert str(error) == (
        f"coreai_onnx needs torch 2.12, 2.13 or 2.15, this is torch {torch.__version__}: "
        "cannot import name 'x' from 'torch'"
    )


@pytest.mark.parametrize(
    ("version", "error", "refused"),
    [
        ("2.1.2", ImportError("cannot import name 'Dim' from 'torch.export' (/a.py)"), True),
        ("2.1.2", ModuleNotFoundError("No module named 'torch.export.graph_signature'"), True),
        ("2.1.2", AttributeError("module 'torch' has no attribute 'int1'"), True),
        ("2.16.0", ImportError("cannot import name 'Dim' from 'torch.export' (/a.py)"), True),
        ("2.13.0", ImportError("cannot import name 'Dim' from 'torch.export' (/a.py)"), False),
        ("2.16.0", ModuleNotFoundError("No module named 'torchvision'"), False),
        ("2.16.0", AttributeError("'NoneType' object has no attribute 'shape'"), False),
    ],
)
def test_what_an_unsupported_torch_lacks_explains_a_failed_import(
    monkeypatch: pytest.MonkeyPatch, version: str, error: Exception, refused: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    refusal = refusal_after(error)
    assert (refusal is not None) == refused
    if refusal is not None:
        assert f"this is torch {version}: " in str(refusal)
        assert "/a.py" not in str(refusal)


def test_files_are_relative() -> None:
    assert relative_path(torch.nn.__file__) == "torch/nn/__init__.py"
    assert relative_path(str(Path.cwd() / "model.py")) == "model.py"
    assert relative_path("/somewhere/else/model.py") == "model.py"


def test_what_is_torchs() -> None:
    assert is_torch(torch.nn.__file__)
    assert is_torch("<eval_with_key>.12")
    assert not is_torch(__file__)
    assert not is_torch("<stdin>")


def test_what_is_the_users() -> None:
    assert is_users(__file__)
    assert not is_users(coreai_onnx.__file__)
    assert not is_users(torch.nn.__file__)
