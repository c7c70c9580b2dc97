"""Runs of a file with some rows of its inputs, in calls of some tokens, on a target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from coreai_onnx.debugging.difference import Array
from coreai_onnx.errors import ComparisonError, SessionError
from coreai_onnx.model.contract import read_contract
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.libraries.library import kernels_built
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import Source, model_of

_LOGITS = 3
"""Rank of logits: rows, tokens, vocabulary."""
_TARGETS = ("scalar", "neon", "avx2", "avx512", "avx512_bf16")
"""Those of deterministic sessions, which use no tile registers."""
_TARGET_VARIABLE = "COREAI_OPS_TARGET"


@dataclass(frozen=True)
class RowsRun:
    """A way to run some rows of the inputs."""

    label: str
    rows: tuple[int, ...]
    cuts: tuple[int, ...] = ()  # where calls begin, in tokens, after the first
    threads: int | None = None
    capacity: int = 0  # of a static cache, beside its tokens
    shift: int = 0  # of the inputs in memory, in elements
    target: str = ""  # of the kernels; the best one of the processor if it is empty


class Runs:
    """Runs a model in cases; results are kept by case."""

    def __init__(
        self,
        model: Source,
        inputs: Mapping[str, Array],
        batch: str | None,
        sequence: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.model, self._settings = model, dict(settings)
        self._threads = self._settings.pop("threads", None)
        self._sessions: dict[tuple[int | None, str], Session] = {}
        session = self._session(self._threads)
        self._inputs = {name: np.asarray(value) for name, value in inputs.items()}
        if missing := [x.name for x in session.inputs if x.name not in self._inputs]:
            raise ComparisonError(f"there is no value of the input {missing[0]!r}")
        self._infos = [x for x in session.inputs if x.name in self._inputs]
        self.batch = self._dim(batch, 0)
        self.sequence = self._dim(sequence, 1) if sequence or session.states else None
        contract = read_contract(session.model.metadata_props)
        cache = contract.cache if contract is not None and session.states else ""
        self.is_static = cache == "static"
        self._results: dict[RowsRun, dict[str, Array]] = {}

    def _dim(self, wanted: str | None, axis: int) -> str | None:
        dims = [x.dims[axis] for x in self._infos if len(x.dims) > axis]
        names = [dim for dim in dims if isinstance(dim, str)]
        everywhere = {dim for x in self._infos for dim in x.dims if isinstance(dim, str)}
        if wanted is not None and wanted not in everywhere:
            there = ", ".join(sorted(everywhere)) or "none"
            raise ComparisonError(f"the inputs have no dim {wanted!r}; there are {there}")
        return wanted or next(iter(names), None)

    def _session(self, threads: int | None, target: str = "") -> Session:
        key = threads, target
        if key not in self._sessions:
            with _on_target(target):
                settings = self._settings_on(target)
                self._sessions[key] = Session(self.model, threads=threads, **settings)
        return self._sessions[key]

    def _settings_on(self, target: str) -> dict[str, Any]:
        # By default, a session runs bodies if the kernels of a target cannot be registered.
        return self._settings | ({"kernels": True} if target else {})

    def targets(self) -> list[str]:
        """Return the targets of this processor, if the model has kernels."""
        if self._settings.get("kernels") is False or not kernels_built():
            return []
        return [target for target in _TARGETS if self._has(target)]

    def _has(self, target: str) -> bool:
        try:
            self._session(self._threads, target)
        except SessionError:  # the processor, or the library for it, lacks the target
            return False
        return True

    def size(self, dim: str | None) -> int:
        """Return the size of a dim in the inputs; 0 if there is none."""
        sizes = [
            self._inputs[x.name].shape[axis]
            for x in self._infos
            for axis, name in enumerate(x.dims)
            if dim is not None and name == dim
        ]
        return sizes[0] if sizes else 0

    def axis_of(self, name: str, dim: str | None, session: Session | None = None) -> int | None:
        """Return the axis of an output or state that a dim counts, if there is one."""
        session = session or self._session(self._threads)
        infos = {info.name: info for info in (*session.outputs, *session.state_inputs)}
        dims = infos[name].dims
        if dim is not None and dim in dims:
            return dims.index(dim)
        # The logits of a prompt have a dim of their own, whose size is that of the tokens.
        is_tokens = dim == self.sequence and name not in session.states and len(dims) == _LOGITS
        return 1 if is_tokens and isinstance(dims[1], str) else None

    def result(self, case: RowsRun) -> dict[str, Array]:
        """Return the outputs of a case, and the states that it ends with."""
        if case not in self._results:
            session = self._session(case.threads or self._threads, case.target)
            self._results[case] = self.run(session, case)
        return self._results[case]

    def run(self, session: Session, case: RowsRun) -> dict[str, Array]:
        """Run a session in a case."""
        stream, length = session.stream(), self.size(self.sequence)
        starts = (0, *case.cuts) if length else (0,)
        calls = []
        for start, end in zip(starts, (*starts[1:], length), strict=True):
            feeds = {x.name: self._part(x, case, start, end) for x in self._infos}
            if start == 0:
                feeds |= self._first_states(session, case)
            outputs = stream.run(**feeds)
            calls.append({name: np.array(outputs[name]) for name in outputs.names})
        results = {}
        for name in calls[0]:
            axis, parts = self.axis_of(name, self.sequence, session), [call[name] for call in calls]
            others = {tuple(np.delete(part.shape, axis)) for part in parts if axis is not None}
            # A value inside of the graph may grow with the tokens along another axis as well.
            results[name] = np.concatenate(parts, axis) if len(others) == 1 else parts[-1]
        states = {name: np.array(value) for name, value in stream.state.items()}
        # Beyond the tokens a static cache has no meaning.
        if self.is_static:
            states = {name: value[:, :, :length] for name, value in states.items()}
        return results | states

    def _part(self, info: TensorInfo, case: RowsRun, start: int, end: int) -> Array:
        """Return the rows and tokens of an input."""
        value, length = self._inputs[info.name], self.size(self.sequence)
        for axis, dim in enumerate(info.dims):
            if dim == self.batch:
                value = value.take(case.rows, axis)
            elif length and dim == self.sequence:
                value = value.take(range(start, end), axis)
            elif length and isinstance(dim, str) and value.shape[axis] == length:
                value = value.take(range(end), axis)  # a mask covers the tokens before as well
        # At another address: the order of sums must not depend on the alignment of inputs.
        moved = np.empty(value.size + case.shift, value.dtype)[case.shift :].reshape(value.shape)
        moved[...] = value
        return moved

    def _first_states(self, session: Session, case: RowsRun) -> dict[str, Array]:
        """Return states to start from where the file has none: empty ones, or zeros."""
        free = self.size(self.sequence) + case.capacity if self.is_static else 0
        empty = {}
        for name, info in zip(session.states, session.state_inputs, strict=True):
            sizes = [len(case.rows) if dim == self.batch else dim for dim in info.dims]
            shape = [size if isinstance(size, int) else free for size in sizes]
            if any(isinstance(dim, str) for dim in info.dims):
                empty[name] = np.zeros(shape, info.numpy_dtype)
        return empty

    def observed(self, case: RowsRun) -> Session:
        """Return a session whose outputs are all values of the graph that have a type."""
        copy = model_of(self.model).clone()
        present = set(copy.graph.outputs)
        for node in copy.graph:
            for value in node.outputs:
                if value not in present and value.dtype is not None and value.name:
                    copy.graph.outputs.append(value)
        with _on_target(case.target):
            settings = self._settings_on(case.target)
            return Session(copy, threads=case.threads or self._threads, **settings)


@contextmanager
def _on_target(target: str) -> Iterator[None]:
    """Select the target of the kernels of sessions that are created, as the library reads it."""
    before = os.environ.get(_TARGET_VARIABLE)
    if target:
        os.environ[_TARGET_VARIABLE] = target
    try:
        yield
    finally:
        os.environ.pop(_TARGET_VARIABLE, None)
        if before is not None:
            os.environ[_TARGET_VARIABLE] = before
