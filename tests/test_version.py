"""The version of the package, and the versions of Python."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib

import pytest

import coreai_onnx
from coreai_onnx.version import __version__
from tests.rules.tree import REPO


def test_the_version_is_stated_once() -> None:
    pyproject = tomllib.loads((REPO / "pyproject.toml").read_text())
    assert pyproject["project"]["dynamic"] == ["version"]
    assert "version" not in pyproject["project"]
    assert pyproject["tool"]["scikit-build"]["metadata"]["version"]["input"].endswith("version.py")
    assert coreai_onnx.__version__ == __version__
    assert f'__version__ = "{__version__}"' in (REPO / "coreai_onnx" / "version.py").read_text()


def test_an_older_python_is_one_line_that_says_what_to_install() -> None:
    script = "import sys; sys.version_info = (3, 10, 4, 'final', 0); import coreai_onnx"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ImportError: coreai_onnx")
    assert "needs Python 3.11 or later, this is Python 3.10; install it for a newer Python" in last


@pytest.mark.parametrize("name", ["__init__", "version"])
def test_an_older_python_can_read_what_says_so(name: str) -> None:
    ast.parse((REPO / "coreai_onnx" / f"{name}.py").read_text(), feature_version=(3, 6))
