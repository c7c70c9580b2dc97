"""The Node.js app."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.examples import apps, tutorial

pytestmark = pytest.mark.slow


def test_runs_the_bodies(model: Path) -> None:
    folder = apps.npm_install("node")
    apps.assert_as_python(apps.run(["node", "run_encoder.js", model], folder), model)


def test_the_tutorial(tmp_path: Path, tutorial_model: Path) -> None:
    shutil.copytree(apps.npm_install("node"), tmp_path / "app", copy_function=os.link)
    tutorial.begin("Node.js", tmp_path / "app", tutorial_model)
    tutorial.run_commands("Node.js", tmp_path / "app")
