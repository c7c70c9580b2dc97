"""Files that source lines stand in."""

from __future__ import annotations

from pathlib import Path

import torch

import coreai_onnx
from coreai_onnx.export.source_files import is_torch, is_users, relative_path


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
