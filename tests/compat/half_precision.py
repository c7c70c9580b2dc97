"""Architectures in 16 bits on stock onnxruntimes: whether they open, and how far off they are."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import torch
from torch._dynamo.exc import UserError
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from coreai_onnx import TorchConverter
from coreai_onnx.export.compat.finite_checks import Repairs
from coreai_onnx.targets.releases import newest_opset
from tests.compat.older_onnxruntime import RELEASES as SUPPORTED
from tests.compat.older_onnxruntime import install
from tests.models.architecture import Architecture, expected_outputs
from tests.support.tolerances import as_numpy, tolerance

NARROW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
RELEASES = SUPPORTED[SUPPORTED.index("1.21.1") :]
"""The releases that files are tested with in 16 bits."""
EXCEPTION = "half_model"
_OPSETS = {True: 21, False: 23}

_RUN = """
import ctypes, json, sys
import numpy as np
import onnxruntime as ort
BFLOAT16 = 16
folder, models, version = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
assert ort.__version__ == version, ort.__version__
def narrow(array, type):
    if type == "tensor(bfloat16)":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)
def plain(value):
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = value.shape()
    count = int(np.prod(shape))
    raw = (ctypes.c_uint16 * count).from_address(value.data_ptr())
    return np.frombuffer(raw, np.uint16).reshape(shape).copy()
for model, runs in models:
    print("begin", json.dumps(model), flush=True)
    try:
        session = ort.InferenceSession(f"{folder}/{model}.onnx", providers=["CPUExecutionProvider"])
        types = {x.name: x.type for x in session.get_inputs()}
        names = [x.name for x in session.get_outputs()]
        for run in runs:
            given = np.load(f"{folder}/{run}.inputs.npz")
            feeds = {n: narrow(given[n], types[n]) for n in given.files}
            values = session.run_with_ort_values(names, feeds)
            np.savez(f"{folder}/{run}.outputs.npz", *map(plain, values))
    except Exception as error:
        print("failed", json.dumps(str(error)), flush=True)
"""


@dataclass(frozen=True)
class Result:
    """What came of one model on one release.

    Attributes:
        error: The largest difference to torch in units of what is allowed.
        outside: Share of the values that are further off than allowed.
        failure: What went wrong instead; empty if nothing did.
    """

    error: float = 0.0
    outside: float = 0.0
    failure: str = ""

    @property
    def agrees(self) -> bool:
        """Whether it ran, and every value is close enough."""
        return not self.failure and self.error <= 1

    def __str__(self) -> str:
        """Return the cell of a table."""
        share = f" ({self.outside:.1%})" if self.outside else ""
        return self.failure or f"{self.error:.2f}{share}"


def prepare(architecture: Architecture, dtype: torch.dtype, folder: Path) -> str:
    """Save an architecture at two opsets, its arguments and torch's results; return its name."""
    case = f"{architecture.name}.{str(dtype).removeprefix('torch.')}"
    module = architecture.module(dtype)
    exported = _exported(architecture, module, dtype)
    for opset in _OPSETS.values():
        converter = TorchConverter().add_exported_program(exported)
        program = converter.to_onnx(opset_version=opset).optimize()
        program.save(folder / f"{case}.opset{opset}.onnx")
    for index, size in enumerate(architecture.sizes):
        arguments = architecture.arguments(*size, dtype)
        given = {name: _raw(as_numpy(x)) for name, x in arguments.items()}
        np.savez(folder / f"{case}.{index}.inputs.npz", **given)
        wide = {n: x.float() if x.is_floating_point() else x for n, x in arguments.items()}
        results = expected_outputs(copy.deepcopy(module).float(), wide)
        np.savez(folder / f"{case}.{index}.expected.npz", *map(as_numpy, results))
    return case


def _exported(
    architecture: Architecture, module: torch.nn.Module, dtype: torch.dtype
) -> torch.export.ExportedProgram:
    """Export an architecture; if torch rejects a condition, as ``convert`` retries the export."""
    try:
        return architecture.export(module, dtype)
    except UserError:
        return replace(architecture, deferred=True).export(module, dtype)
    except GuardOnDataDependentSymNode:
        with Repairs():
            return architecture.export(module, dtype)


def run_release(release: str, folder: Path, cases: list[str]) -> dict[str, Result]:
    """Run cases in processes of a release; one that crashes is restarted behind the model."""
    opset = _OPSETS[newest_opset(release) < 23]
    failures: dict[str, str] = {}
    waiting = list(cases)
    while waiting:
        models = [(f"{c}.opset{opset}", [f"{c}.{i}" for i in _runs(folder, c)]) for c in waiting]
        done = _process(release, folder, models)
        begun = 0
        for line in done.stdout.splitlines():
            kind, _, text = line.partition(" ")
            begun += kind == "begin"
            if kind == "failed":
                failures[waiting[begun - 1]] = _short(json.loads(text))
        if done.returncode == 0:
            break
        assert begun, done.stderr
        failures[waiting[begun - 1]] = f"crash ({done.returncode})"
        waiting = waiting[begun:]
    return {
        c: Result(failure=failures[c]) if c in failures else _compared(folder, c) for c in cases
    }


def _process(
    release: str, folder: Path, models: list[tuple[str, list[str]]]
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ}
    environment.pop("PYTHONPATH", None)
    if release != onnxruntime.__version__:
        environment["PYTHONPATH"] = str(install(release))
    command = [sys.executable, "-c", _RUN, str(folder), json.dumps(models), release]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _runs(folder: Path, case: str) -> range:
    return range(len(list(folder.glob(f"{case}.*.inputs.npz"))))


def _compared(folder: Path, case: str) -> Result:
    """Compare what a case gave at all sizes."""
    allowed, units = tolerance(case.rpartition(".")[2], EXCEPTION), [np.zeros(1)]
    for index in _runs(folder, case):
        with np.load(folder / f"{case}.{index}.outputs.npz") as given:
            actual = [_wide(given[key]) for key in given.files]
        with np.load(folder / f"{case}.{index}.expected.npz") as given:
            expected = [given[key] for key in given.files]
        for a, e in zip(actual, expected, strict=True):
            if a.shape != e.shape:
                return Result(failure=f"shape {a.shape} instead of {e.shape}")
            error = np.abs(a - e) / (allowed.atol + allowed.rtol * np.abs(e))
            units.append(np.nan_to_num(error, nan=np.inf).ravel())
    found = np.concatenate(units)
    return Result(float(found.max()), float((found > 1).mean()))


def _raw(array: np.ndarray) -> np.ndarray:
    """Return what a file of numpy can hold: the bits of a bfloat16."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _wide(array: np.ndarray) -> np.ndarray:
    """Return an output in float32; 16-bit integers are the bits of bfloat16."""
    bits = array.dtype == np.uint16
    return (array.view(ml_dtypes.bfloat16) if bits else array).astype(np.float32)


def _short(message: str) -> str:
    return " ".join(message.split())[:60].replace("|", "/")
