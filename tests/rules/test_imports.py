"""Imports follow the road one way; the contracts themselves are in pyproject.toml."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.rules.tree import REPO
from tests.support.uninstalled import run_uninstalled

LINT = "from importlinter.cli import lint_imports_command as command; command()"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter in a folder that holds ``coreai_onnx``, with the project's contracts."""
    options = ["--no-cache", "--config", str(REPO / "pyproject.toml")]
    return run_uninstalled(LINT, *options, folder=folder, path=(folder,))


def test_the_road_is_one_way() -> None:
    result = lint(REPO)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]
    assert " 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("room", "line", "contract"),
    [
        ("lower", "import coreai_onnx.converter", "imports follow the road"),
        ("passes", "import torch", "passes and targets know only ONNX"),
        ("targets", "import torch", "passes and targets know only ONNX"),
        ("lower", "import onnx_graphsurgeon", "only the engine of passes knows onnx-graphsurgeon"),
        ("export", "import onnxruntime", "only runtime and debugging know onnxruntime"),
        ("a_room_of_its_own", "import json", "imports follow the road"),
    ],
)
def test_a_wrong_turn_is_seen(tmp_path: Path, room: str, line: str, contract: str) -> None:
    write_package(tmp_path)
    assert lint(tmp_path).returncode == 0
    folder = tmp_path / "coreai_onnx" / room
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / "wrong.py").write_text(line + "\n")
    result = lint(tmp_path)
    assert result.returncode != 0
    assert contract in result.stdout, result.stdout + result.stderr


def test_a_circle_is_seen_if_only_the_type_checker_follows_it(tmp_path: Path) -> None:
    write_package(tmp_path)
    folder = tmp_path / "coreai_onnx" / "model"
    (folder / "first.py").write_text("import coreai_onnx.model.second\n")
    condition = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
    (folder / "second.py").write_text(condition + "import coreai_onnx.model.first\n")
    result = lint(tmp_path)
    assert result.returncode != 0
    assert "no file imports itself through others BROKEN" in result.stdout


def write_package(folder: Path) -> None:
    """Write a package with the folders that the contracts name."""
    rooms = "cli converter debugging program bodies passes runtime lower export composites model"
    for name in (*rooms.split(), "errors", "targets", "lower/aten", "passes/engine"):
        (folder / "coreai_onnx" / name).mkdir(parents=True, exist_ok=True)
        (folder / "coreai_onnx" / name / "__init__.py").touch()
    (folder / "coreai_onnx" / "__init__.py").touch()
    builder = folder / "coreai_onnx" / "model" / "python" / "builder"
    builder.mkdir(parents=True)
    for file in (builder.parent / "__init__.py", builder / "__init__.py", builder / "running.py"):
        file.touch()
    imports = {"passes/engine": "onnx_graphsurgeon", "runtime": "onnxruntime"}
    for name, module in imports.items():
        (folder / "coreai_onnx" / name / "__init__.py").write_text(f"import {module}\n")
