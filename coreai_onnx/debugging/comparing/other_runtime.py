"""Sessions in the onnxruntime of another Python."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.debugging.comparing import runtime_process
from coreai_onnx.debugging.difference import Array
from coreai_onnx.errors import InputError, SessionError, failures_as
from coreai_onnx.model.files.saving import save_models
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import Source, model_of
from coreai_onnx.runtime.tensors.outputs import Outputs
from coreai_onnx.runtime.tensors.values import dtype_of, from_ort, to_numpy, to_ort


class OtherRuntime(Session):
    """A session whose runs are in another Python, on function bodies.

    Each call is a process of its own, which loads the model; states are carried between them.

    Attributes:
        name: ``onnxruntime 1.24.1``.
    """

    def __init__(self, source: Source, python: str | PathLike[str]) -> None:
        """Open the model here, which reads its signature, and ask for the other version.

        Args:
            source: As for `session`.
            python: The other Python, with numpy and onnxruntime.

        Raises:
            SessionError: If the model cannot be opened here, or the Python has no onnxruntime.
        """
        super().__init__(source, kernels=False)
        self._python = str(python)
        self.name = f"onnxruntime {_process(self._python).strip()}"
        self._folder = tempfile.mkdtemp(prefix="coreai_onnx_")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._place = _file_of(source, Path(self._folder))
        self._carried: dict[str, Array] = {}

    def run(self, *args: object, **named: object) -> Outputs:
        """Run the model once in the other Python; see `Session.run`.

        Raises:
            InputError: If a name is wrong, or a value is not a tensor.
            SessionError: If the other onnxruntime cannot load or run the model.
        """
        arguments = self._signature.bind(args, named)
        info = self._signature.info
        for name in arguments:
            if info(name).dtype == "string":
                raise InputError(f"input {name!r}: strings cannot be passed to another runtime")
        # There and back, which makes complex numbers the pairs that the file stores.
        arrays = {n: from_ort(to_ort(to_numpy(v, info(n)), info(n))) for n, v in arguments.items()}
        results = self._results({**self._carried, **arrays})
        outputs = {x.name: from_ort(to_ort(results[x.name]), x) for x in self.outputs}
        self._carried = {state.input: results[state.output] for state in self._signature.states}
        states = {n: from_ort(to_ort(array), info(n)) for n, array in self._carried.items()}
        return Outputs(outputs, lambda: states)

    def _results(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model on arrays as it stores them; return those of all its outputs."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            inputs = [[name, _element(array)] for name, array in feeds.items()]
            job = {"model": str(self._place), "inputs": inputs}
            (folder / "job.json").write_text(json.dumps(job), "utf-8")
            # The entries of a .npz file are files: the name of a tensor may not be a file's.
            raw: dict[str, Any] = {str(i): _raw(array) for i, array in enumerate(feeds.values())}
            np.savez(folder / "inputs.npz", **raw)
            try:
                _process(self._python, name)
            except SessionError as error:
                raise SessionError(f"{self.name} cannot run the model: {error}") from error
            types = json.loads((folder / "outputs.json").read_text("utf-8"))
            with np.load(folder / "outputs.npz") as arrays:
                return {
                    name: arrays[str(i)].view(np.dtype(dtype_of(kind)))
                    for i, (name, kind) in enumerate(types)
                }


def _process(python: str, *arguments: str) -> str:
    """Run `runtime_process` in another Python; return what it prints.

    Raises:
        SessionError: If the Python cannot be started, has no onnxruntime, or fails.
    """
    # -I ignores PYTHONPATH, by which the other Python would import packages of this one.
    command = [python, "-I", runtime_process.__file__, *arguments]
    with failures_as(SessionError, f"cannot start the Python {python!r}"):
        done = subprocess.run(  # noqa: S603 - the user's Python
            command, capture_output=True, check=False, text=True, errors="replace"
        )
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
    if done.returncode < 0:
        lines.append(f"the process ended with {signal.Signals(-done.returncode).name}")
    advice = "" if arguments else "\n  give a Python with numpy and onnxruntime installed"
    raise SessionError(f"{python}: {lines[-1]}{advice}")


def _file_of(source: Source, folder: Path) -> Path:
    """Return the model's file; a model in memory is written to a folder."""
    if isinstance(source, str | PathLike):
        return Path(source).resolve()
    place = folder / "model.onnx"
    save_models({place: model_of(source)}, folder / "model.onnx.data")
    return place


def _raw(array: Array) -> Array:
    """Return an array of a type that every numpy has."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")


def _element(array: Array) -> int:
    """Return the ONNX element type of an array whose type numpy does not have, or 0."""
    if array.dtype.isbuiltin == 1:
        return 0
    return int(ir.DataType.from_numpy(array.dtype).value)
