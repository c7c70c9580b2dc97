"""The Node.js app."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import apps

pytestmark = pytest.mark.slow


def test_runs_the_bodies(model: Path) -> None:
    folder = apps.npm_install("node")
    apps.assert_as_python(apps.run(["node", "run_encoder.js", model], folder), model)
