"""Runs of models with a custom op library in another process, which the library may crash."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.outputs import Array
from coreai_onnx.runtime.session import Session

_PACKAGES = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class TrialRun:
    """One run.

    Attributes:
        model: Index of the model.
        inputs: Its inputs, in order.
    """

    model: int
    inputs: tuple[Array, ...]


@dataclass(frozen=True)
class Trial:
    """Models to run with a library.

    Attributes:
        library: The custom op library.
        models: Serialized models.
        runs: The runs, in order.
    """

    library: Path
    models: Sequence[bytes]
    runs: Sequence[TrialRun]


@dataclass(frozen=True)
class TrialResult:
    """The results of a trial.

    Attributes:
        outputs: The outputs of the runs that succeeded, up to the first that did not.
        failure: Why the next run failed; empty if all succeeded.
    """

    outputs: Sequence[tuple[Array, ...]]
    failure: str = ""


def run_trial(trial: Trial, *, timeout: float) -> TrialResult:
    """Run models in a new process.

    Args:
        trial: The models, their inputs, and the library.
        timeout: Seconds after which the process is ended.
    """
    with tempfile.TemporaryDirectory(prefix="coreai_onnx_") as folder:
        given, results = Path(folder) / "trial", Path(folder) / "results"
        given.write_bytes(pickle.dumps(trial))
        results.touch()
        path = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-P", "-m", __name__, str(given), str(results)]
        try:
            done = subprocess.run(  # noqa: S603 - this module
                command,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return TrialResult(_outputs(results)[0], f"it did not finish within {timeout:g} s")
        outputs, failure = _outputs(results)
        if not failure and done.returncode != 0:
            failure = _crash(done.returncode, done.stderr.decode(errors="replace"))
        return TrialResult(outputs, failure)


def _outputs(results: Path) -> tuple[list[tuple[Array, ...]], str]:
    """Return the outputs that the process wrote, and its error message."""
    outputs: list[tuple[Array, ...]] = []
    with results.open("rb") as file:
        while True:
            try:
                one = pickle.load(file)  # noqa: S301 - written by this module
            except (EOFError, pickle.UnpicklingError):  # the process ended while it wrote
                return outputs, ""
            if isinstance(one, str):
                return outputs, one
            outputs.append(one)


def _crash(code: int, said: str) -> str:
    """Return how a process ended, and the last lines that it wrote."""
    how = f"the process crashed with {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
    return "\n".join([how, *said.splitlines()[-3:]])


def main(given: Path, results: Path) -> None:
    """Make the runs of a trial, and write the outputs of each before the next one starts."""
    trial: Trial = pickle.loads(given.read_bytes())  # noqa: S301 - written by this module
    sessions: dict[int, Session] = {}
    with results.open("wb", buffering=0) as file:
        for run in trial.runs:
            try:
                if run.model not in sessions:
                    model = trial.models[run.model]
                    sessions[run.model] = Session(model, kernels=False, custom_ops=[trial.library])
                outputs: object = tuple(sessions[run.model].run(*run.inputs).values())
            except SessionError as error:
                outputs = str(error)
            file.write(pickle.dumps(outputs))
            if isinstance(outputs, str):
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
