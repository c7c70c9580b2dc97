"""What the tests of the example apps share: the model, what it gives, and packages to run on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.support.tolerances import assert_close

REPO = Path(__file__).resolve().parent.parent.parent
EXAMPLES = REPO / "docs" / "examples"
CACHE = REPO / ".cache" / "examples"
NO_NODE = "COREAI_ONNX_NO_NODE"


def run(command: Sequence[object], folder: Path, **environment: str) -> str:
    """Run a command and return what it printed; a failure shows what it said."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_model(folder: Path) -> Path:
    """Run ``make_model.py`` and return the file it wrote."""
    path = folder / "encoder.onnx"
    run([sys.executable, EXAMPLES / "make_model.py", path], REPO, PYTHONPATH=str(REPO))
    return path


def assert_as_python(line: str, model: Path, exception: str | None = None) -> None:
    """Compare an app's line of JSON with the function bodies in this process.

    Args:
        line: What the app printed.
        model: The file that it ran.
        exception: A row of the table of tolerances.
    """
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    batch = np.sin(np.arange(2 * 7 * 64) * 0.01).astype(np.float32).reshape(2, 7, 64)
    (expected,) = session.run(None, {"src": batch})
    found = json.loads(line)
    assert found["shape"] == [2, 7, 64]
    numbers = np.array([found["mean"], *found["first"]], np.float32)
    wanted = np.array([expected.mean(), *expected.ravel()[:8]], np.float32)
    assert_close(numbers, wanted, exception=exception)


def npm_install(app: str) -> Path:
    """Return a folder with a copy of an app and its packages; it stays between runs."""
    if os.environ.get(NO_NODE):
        pytest.skip(f"{NO_NODE} is set")
    if shutil.which("npm") is None:
        pytest.fail(f"no npm: as root, apt-get install npm; or set {NO_NODE}=1 to go without")
    folder = CACHE / app
    if not (folder / "node_modules" / ".package-lock.json").is_file():
        parts = folder.with_name(f"{app}.{os.getpid()}")
        shutil.copytree(EXAMPLES / app, parts, dirs_exist_ok=True)
        run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], parts)
        shutil.rmtree(folder, ignore_errors=True)
        parts.rename(folder)
    shutil.copytree(EXAMPLES / app, folder, dirs_exist_ok=True)
    return folder
