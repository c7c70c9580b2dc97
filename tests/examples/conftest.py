"""The models that the example apps and those of the tutorial load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import apps, tutorial


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of ``make_model.py``."""
    return apps.make_model(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="session")
def tutorial_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of docs/tutorials/deploying.md."""
    return tutorial.make_model(tmp_path_factory.mktemp("tutorial"))
