"""The model that every example app loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import apps


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of ``make_model.py``."""
    return apps.make_model(tmp_path_factory.mktemp("examples"))
