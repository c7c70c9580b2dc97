"""Everything that is done with a file, and what may come of it: results, or errors of our own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coreai_onnx.debugging import diff_models, inspect_model
from coreai_onnx.debugging.diff.inspection import histogram
from coreai_onnx.errors import CoreaiError
from coreai_onnx.messages import TEXT_LIMIT
from coreai_onnx.model.files.loading import fault
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.session import Session
from tools.fuzzing.mutation import mutated
from tools.fuzzing.seeds import DATA, seeds

TARGETS: tuple[Any, ...] = ("onnxruntime", "contrib", "portable")
CAUSES = (AssertionError, AttributeError, LookupError, RecursionError, TypeError, UnicodeError)
"""What a library or a pass raises over something that it should have checked."""


class FoundError(AssertionError):
    """Something came of a file that must not."""


class Exerciser:
    """Makes files and does everything with them.

    Args:
        folder: Where to write files; the secret that none may reach is beside it.
        sessions: Whether to open and run the files in onnxruntime, which may crash.
    """

    def __init__(self, folder: Path, *, sessions: bool) -> None:
        """Write the data file and the file that others are compared with."""
        self.folder, self.sessions = folder, sessions
        self.path, self.other = folder / "m.onnx", folder / "other.onnx"
        (folder / "data").write_bytes(DATA)
        (folder.parent / "secret").write_bytes(DATA)
        self.other.write_bytes(seeds()[0].SerializeToString())
        self.good = 0

    def run(self, seed: int) -> None:
        """Make the file of a seed and do everything with it.

        Raises:
            FoundError: What came of it is neither a result nor an error of this package.
        """
        rng = random.Random(seed)
        model = rng.choice(seeds())
        self.path.write_bytes(mutated(model, rng))
        loaded = self._attempt("inspect", lambda: str(inspect_model(self.path)))
        self._attempt("histogram", lambda: histogram([self.path, self.other]))
        self._attempt("diff", lambda: str(diff_models(self.path, self.other)))
        if loaded is not None:
            self.good += self._optimized(rng.choice(TARGETS))
        if self.sessions:
            self._attempt("run", self._run)

    def _attempt(self, what: str, action: Callable[[], Any]) -> Any:
        try:
            result = action()
        except CoreaiError as error:
            self._check_error(what, error)
            return None
        except Exception as error:
            raise FoundError(f"{what}: {type(error).__name__}: {error}") from error
        if isinstance(result, str) and not result.replace("\n", "").isprintable():
            raise FoundError(f"{what}: prints what a terminal obeys: {result!r}")
        return result

    def _check_error(self, what: str, error: CoreaiError) -> None:
        text = str(error)
        if len(text) > TEXT_LIMIT or not text.replace("\n", "").replace("\t", "").isprintable():
            raise FoundError(f"{what}: a message of {len(text)} characters: {text!r}")
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        causes = (*CAUSES, ValueError) if "raised on" in text else CAUSES
        if what != "run" and isinstance(cause, causes) and not _from_reader(cause):
            raise FoundError(f"{what}: an error that nothing checked for: {text}") from error

    def _optimized(self, target: Any) -> bool:
        """Optimize and save; what is saved has to load again, whatever was loaded before."""

        def work() -> bool:
            OnnxProgram.load(self.path).optimize(target=target).save(self.folder / "out.onnx")
            return True

        done = self._attempt(f"optimize for {target}", work)
        if done and (wrong := fault(self.folder / "out.onnx")):
            raise FoundError(f"optimize for {target}: what was saved does not load: {wrong}")
        return bool(done)

    def _run(self) -> None:
        session = Session(self.path, kernels=False, threads=1)
        if b"Loop" in self.path.read_bytes():
            return  # it may never end, and is right to
        sizes = session.example_sizes({}, default=2)
        feeds = {}
        for info in (*session.inputs, *session.state_inputs):
            dims = [d if isinstance(d, int) else sizes.get(str(d), 2) for d in info.dims]
            if np.prod(dims, dtype=float) > 1 << 16:
                return
            with contextlib.suppress(TypeError, ValueError):  # strings, sequences: not given
                feeds[info.name] = np.zeros(dims, np.dtype(info.dtype))
        session.run(**feeds)


def _from_reader(error: BaseException) -> bool:
    """Return whether onnx_ir or protobuf raised it while they read: that is their check."""
    frame, module = error.__traceback__, ""
    while frame is not None:
        module = frame.tb_frame.f_globals.get("__name__", "")
        frame = frame.tb_next
    return module.startswith(
        ("onnx_ir.serde", "google.protobuf", "onnx_ir._core", "onnx_ir._enums")
    )
