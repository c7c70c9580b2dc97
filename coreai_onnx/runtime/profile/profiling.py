"""The profile of one session: what onnxruntime is asked to write, and how it is read."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import SessionError, failures_as
from coreai_onnx.model.inventory import MODULE_DOMAIN, STANDARD_DOMAIN
from coreai_onnx.model.provenance.places import marked
from coreai_onnx.model.standard_composites import KERNEL_FILES
from coreai_onnx.model.work import flops, moved_bytes
from coreai_onnx.runtime.profile.node_times import Execution, NodeTime, Profile
from coreai_onnx.runtime.profile.peaks import measured_peaks
from coreai_onnx.runtime.profile.timing import Timing
from coreai_onnx.runtime.profile.trace import (
    WEIGHTS,
    Executed,
    Owners,
    Run,
    read_runs,
    request_trace,
)


class Profiling:
    """Records the nodes that a session runs.

    Attributes:
        model: The model to open instead of the given one: it computes the same, with the same
            nodes, whose names lead to their places.
    """

    def __init__(
        self, model: ir.Model, *, kernels: bool, threads: int | None, custom_ops: bool
    ) -> None:
        """Prepare the model.

        Args:
            model: The model.
            kernels: Whether the native kernels are registered.
            threads: Threads per operator of the session.
            custom_ops: Whether libraries of the user are registered, which may implement functions.
        """
        self._original, self._kernels, self._threads = model, kernels, threads
        self._custom_ops = custom_ops
        self._marked = marked(model, self._is_inlined)
        self._folder = Path(tempfile.mkdtemp(prefix="coreai_onnx_"))
        # A session may be dropped without a call of `finish`.
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._graph = self._folder
        self.model = self._marked.model

    def configure(self, options: ort.SessionOptions) -> None:
        """Request the profile and the graph after onnxruntime's optimizations."""
        self._graph = request_trace(options, self._folder)

    def opened(self) -> None:
        """Forget the weights that onnxruntime wrote beside its graph."""
        self._graph.with_name(self._graph.name + WEIGHTS).unlink(missing_ok=True)

    def finish(self, session: ort.InferenceSession, skip: int = 0) -> Profile:
        """End the profile of a session.

        Args:
            session: The session.
            skip: Number of first runs that are left out.

        Raises:
            SessionError: If no run is left, or onnxruntime's files cannot be read.
        """
        with failures_as(SessionError, "onnxruntime's profile cannot be read"):
            runs = read_runs(Path(session.end_profiling()))[skip:]
            if not runs:
                raise SessionError("there is no run to profile\n  call run() before profile()")
            owners = Owners(ir.load(self._graph), self._marked, runs[0].executed)
        name = "kernels" if self._kernels else "bodies"
        timing = Timing(name, tuple(run.seconds for run in runs))
        nodes, unplaced = self._nodes(runs, owners)
        execution = Execution(timing, tuple(nodes), unplaced)
        return Profile((execution,), measured_peaks(self._threads), self._original)

    def _nodes(self, runs: Sequence[Run], owners: Owners) -> tuple[list[NodeTime], float]:
        seconds: dict[tuple[str, str], list[float]] = {}
        for index, run in enumerate(runs):
            for one in run.executed:
                times = seconds.setdefault((one.name, one.op), [0.0] * len(runs))
                times[index] += one.seconds
        work = _work(runs[-1].executed, owners)
        nodes, unplaced = [], 0.0
        for (name, op), times in seconds.items():
            number = owners.get(name)
            if number is None:
                unplaced += sum(times) / len(times)
                continue
            place = self._marked.places[number]
            nodes.append(NodeTime(place, op, tuple(times), *work.get(name, (0.0, 0.0))))
        return nodes, unplaced

    def _is_inlined(self, key: ir.OperatorIdentifier) -> bool:
        # A library of the user may have kernels for any function of its own domain, and there is no
        # way to ask it. It has none for the composites and modules of this package.
        if self._custom_ops and key[0] not in (STANDARD_DOMAIN, MODULE_DOMAIN):
            return False
        has_kernel = key[0] == STANDARD_DOMAIN and key[1].partition(".")[0] in KERNEL_FILES
        return not (self._kernels and has_kernel)


def _work(executed: Sequence[Executed], owners: Owners) -> dict[str, tuple[float, float]]:
    work: dict[str, tuple[float, float]] = {}
    for one in executed:
        inputs = owners.inputs(one)
        counts, moved = work.get(one.name, (0.0, 0.0))
        counts += flops(one.op, inputs, one.outputs)
        work[one.name] = counts, moved + moved_bytes(one.op, inputs, one.outputs)
    return work
