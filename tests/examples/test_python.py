"""The Python app, in a process whose packages do not include torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import onnxruntime
import pytest

from tests.examples import apps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packages() -> Path:
    """A folder with onnxruntime and what it needs, and nothing else."""
    folder = apps.CACHE / f"python-{onnxruntime.__version__}"
    if not folder.is_dir():
        parts = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        command += ["--target", str(parts), f"onnxruntime=={onnxruntime.__version__}"]
        apps.run(command, apps.REPO)
        parts.rename(folder)
    return folder


@pytest.mark.parametrize("with_kernels", [False, True])
def test_runs_without_torch(
    model: Path, packages: Path, kernels: Path, *, with_kernels: bool
) -> None:
    script = apps.EXAMPLES / "python" / "run_encoder.py"
    ops = ["--ops", kernels] if with_kernels else []
    python = [sys.executable, "-S"]
    gone = apps.run([*python, "-c", NO_TORCH], apps.REPO, PYTHONPATH=str(packages))
    assert gone == "no torch\n"
    line = apps.run([*python, script, model, *ops], apps.REPO, PYTHONPATH=str(packages))
    apps.assert_as_python(line, model)


NO_TORCH = """
import importlib.util
print("torch" if importlib.util.find_spec("torch") else "no torch")
"""
