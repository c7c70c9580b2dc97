"""Older onnxruntimes, each in a folder of its own, run in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

REPO = Path(__file__).resolve().parent.parent.parent
CACHE = REPO / ".cache"

_RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import onnxruntime
folder, library, models = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
assert onnxruntime.__version__ == sys.argv[5], onnxruntime.__version__
for name in models:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if library:
        options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(
        f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"]
    )
    given = dict(np.load(f"{folder}/{name}.inputs.npz"))
    np.savez(f"{folder}/{name}.outputs.npz", *session.run(None, given))
"""


def install(version: str) -> Path:
    """Return a folder with that onnxruntime; its requirements are those of the environment."""
    folder = CACHE / f"onnxruntime-{version}"
    if (folder / "onnxruntime" / "capi").is_dir():
        return folder
    parts = CACHE / f"onnxruntime-{version}.{os.getpid()}"
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    command += ["--no-deps", "--target", str(parts), f"onnxruntime=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"onnxruntime {version} could not be installed:\n{done.stderr}"
    if not folder.exists():  # another worker may have been faster
        parts.rename(folder)
    return folder


def run(
    version: str, folder: Path, names: list[str], library: Path | None
) -> dict[str, list[np.ndarray]]:
    """Run ``<name>.onnx`` on ``<name>.inputs.npz`` of a folder; returns the outputs by name."""
    arguments = [str(install(version)), str(folder), str(library or ""), json.dumps(names), version]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, f"onnxruntime {version}:\n{done.stderr}"
    results = {}
    for name in names:
        with np.load(folder / f"{name}.outputs.npz") as found:
            results[name] = [found[key] for key in found.files]
    return results
