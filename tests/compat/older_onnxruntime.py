"""Older onnxruntimes, each in a folder of its own, run in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from coreai_onnx.composites.declaration import DOMAIN

REPO = Path(__file__).resolve().parent.parent.parent
CACHE = REPO / ".cache"

RELEASES = (
    "1.18.1", "1.19.2", "1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.25.1", "1.26.0",
    "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1",
)  # fmt: skip
"""The last release of each minor version that a file may be for."""
_OWN_NUMPY = {"1.18.1": "numpy==1.26.4"}
"""Releases that were compiled against an older numpy than that of the environment."""

_RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import onnxruntime
folder, library, models = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
op_types = json.loads(sys.argv[6])
assert onnxruntime.__version__ == sys.argv[5], onnxruntime.__version__
for name in models:
    print("begin", json.dumps(name), flush=True)
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        if library:
            if name in op_types:
                options.add_session_config_entry("coreai.op_types", op_types[name])
            options.register_custom_ops_library(library)
        session = onnxruntime.InferenceSession(
            f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"]
        )
        given = dict(np.load(f"{folder}/{name}.inputs.npz"))
        np.savez(f"{folder}/{name}.outputs.npz", *session.run(None, given))
    except Exception as error:
        print("failed", json.dumps(str(error)), flush=True)
"""


def install(version: str) -> Path:
    """Return a folder with that onnxruntime; its requirements are those of the environment."""
    folder = CACHE / f"onnxruntime-{version}"
    if (folder / "onnxruntime" / "capi").is_dir():
        return folder
    parts = CACHE / f"onnxruntime-{version}.{os.getpid()}"
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    command += ["--no-deps", "--target", str(parts), f"onnxruntime=={version}"]
    command += [_OWN_NUMPY[version]] if version in _OWN_NUMPY else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"onnxruntime {version} could not be installed:\n{done.stderr}"
    if not folder.exists():  # another worker may have been faster
        parts.rename(folder)
    return folder


def _op_types(file: Path) -> str:
    """Return the composites that a model calls, also in its functions."""
    model = onnx.load(file, load_external_data=False)
    nodes = [node for body in (model.graph, *model.functions) for node in body.node]
    return ",".join(sorted({node.op_type for node in nodes if node.domain == DOMAIN})) or ","


def run(
    version: str, folder: Path, names: list[str], library: Path | None
) -> dict[str, list[np.ndarray]]:
    """Run ``<name>.onnx`` on ``<name>.inputs.npz`` of a folder; returns the outputs by name."""
    results = {}
    for name, found in attempt(version, folder, names, library).items():
        assert not isinstance(found, str), f"onnxruntime {version}: {name}: {found}"
        results[name] = found
    return results


def attempt(
    version: str, folder: Path, names: list[str], library: Path | None = None
) -> dict[str, list[np.ndarray] | str]:
    """Run files as `run` does; for a file that fails or crashes, the result is the message."""
    results: dict[str, list[np.ndarray] | str] = {}
    waiting = list(names)
    # Only the first file registers all kernels, for which a release takes a second.
    op_types = {name: _op_types(folder / f"{name}.onnx") for name in (names[1:] if library else ())}
    while waiting:
        arguments = [str(install(version)), str(folder), str(library or "")]
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _RUN,
                *arguments,
                json.dumps(waiting),
                version,
                json.dumps(op_types),
            ],
            capture_output=True,
            text=True,
            check=False,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )
        begun = ""
        for line in done.stdout.splitlines():
            kind, _, text = line.partition(" ")
            if kind == "begin":
                begun = json.loads(text)
            elif kind == "failed":
                results[begun] = json.loads(text)
        if done.returncode == 0:
            break
        assert begun, f"onnxruntime {version}:\n{done.stderr}"
        # The process of a crash has the results of the files before it.
        results[begun] = f"crash ({done.returncode})"
        waiting = waiting[waiting.index(begun) + 1 :]
    for name in names:
        if name not in results:
            with np.load(folder / f"{name}.outputs.npz") as found:
                results[name] = [found[key] for key in found.files]
    return results
