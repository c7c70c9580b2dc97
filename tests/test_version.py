"""The version of the package."""

from __future__ import annotations

import tomllib

import coreai_onnx
from coreai_onnx.version import __version__
from tests.rules.tree import REPO


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert __version__ == coreai_onnx.__version__ == project["version"]
