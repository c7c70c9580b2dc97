"""Comparison of a file with itself, bit by bit: in batches, threads, chunks and repeated runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coreai_onnx.debugging.difference import Array
from coreai_onnx.errors import ComparisonError
from coreai_onnx.messages import render
from coreai_onnx.model.contract import read_contract
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import Source, model_of

THREADS = (1, 2, 3, 4, 8, 16)
BATCHES = (2, 3, 4, 5, 8, 16, 33, 64)
_CHUNKS = (1, 2, 3, 5, 7, 16)
_REPEATED = 4
_MORE_CAPACITY = (1, 37, 128)
_LOGITS = 3
"""Rank of logits: rows, tokens, vocabulary."""


@dataclass(frozen=True)
class Deviation:
    """The comparisons of one output along one axis.

    Attributes:
        axis: One of `AXES`.
        output: Name of the output or state.
        compared: Number of elements that were compared.
        elements: How many of them differ.
        bits: How many of their bits differ.
        case: The first comparison that differs, ``"row 3 in a batch of 8"``; empty if none does.
        node: The first node in graph order whose result differs in it; empty if none was found.
    """

    axis: str
    output: str
    compared: int
    elements: int
    bits: int
    case: str = ""
    node: str = ""


@dataclass(frozen=True)
class Determinism:
    """What `verify_determinism` found; prints as a table.

    Attributes:
        deviations: An entry for each axis that the file has, and each output.
    """

    deviations: tuple[Deviation, ...]

    @property
    def ok(self) -> bool:
        """Whether no bit differs."""
        return not any(one.elements for one in self.deviations)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes along which something was compared and no bit differs."""
        compared = [one.axis for one in self.deviations if one.compared]
        wrong = {one.axis for one in self.deviations if one.elements}
        return tuple(axis for axis in AXES if axis in compared and axis not in wrong)

    def __str__(self) -> str:
        """Return the table, and the number of comparisons."""
        header = ("axis", "output", "compared", "differ", "bits", "first", "node")
        rows = [
            (x.axis, x.output, f"{x.compared:,}", f"{x.elements:,}", f"{x.bits:,}", x.case, x.node)
            for x in self.deviations
        ]
        bits, compared = (sum(getattr(x, n) for x in self.deviations) for n in ("bits", "compared"))
        return f"{render(header, rows)}\n{bits:,} bits differ in {compared:,} comparisons"


@dataclass(frozen=True)
class _RowsRun:
    """A way to run some rows of the inputs."""

    label: str
    rows: tuple[int, ...]
    cuts: tuple[int, ...] = ()  # where calls begin, in tokens, after the first
    threads: int | None = None
    capacity: int = 0  # of a static cache, beside its tokens
    shift: int = 0  # of the inputs in memory, in elements


def verify_determinism(
    model: Source,
    inputs: Mapping[str, Array],
    *,
    batch: str | None = None,
    sequence: str | None = None,
    axes: Sequence[str] | None = None,
    **settings: Any,
) -> Determinism:
    """Run a file in ways that must not change its results, and count the bits that differ.

    Args:
        model: A file, a model or a program.
        inputs: Inputs by name, with all rows of the batch and the whole prompt; without states.
        batch: The dim that counts rows; None for the dim of the first axis that has a name.
        sequence: The dim that counts tokens; None for the dim of the second axis of the inputs of a
            model with states. Without one, no prompt is read in chunks.
        axes: Some of `AXES`, None for all. Those that the file does not have are left out.
        **settings: Settings of the session, such as ``deterministic=True``.

    Returns:
        The numbers of comparisons and differing bits; print them, or read ``ok``.

    Raises:
        ComparisonError: If an axis, or a dim that was given, does not exist.
        SessionError: If the file cannot be opened or run.
    """
    if unknown := [axis for axis in axes or () if axis not in AXES]:
        raise ComparisonError(f"axes must be some of {', '.join(AXES)}, got {unknown[0]!r}")
    runs = _Runs(model, inputs, batch, sequence, settings)
    found: list[Deviation] = []
    for axis in AXES:
        if axis in (axes or AXES):
            found += _deviations(axis, runs, _PAIRS[axis](runs))
    return Determinism(tuple(found))


class _Runs:
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
        self._sessions: dict[int | None, Session] = {}
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
        self._results: dict[_RowsRun, dict[str, Array]] = {}

    def _dim(self, wanted: str | None, axis: int) -> str | None:
        dims = [x.dims[axis] for x in self._infos if len(x.dims) > axis]
        names = [dim for dim in dims if isinstance(dim, str)]
        everywhere = {dim for x in self._infos for dim in x.dims if isinstance(dim, str)}
        if wanted is not None and wanted not in everywhere:
            there = ", ".join(sorted(everywhere)) or "none"
            raise ComparisonError(f"the inputs have no dim {wanted!r}; there are {there}")
        return wanted or next(iter(names), None)

    def _session(self, threads: int | None) -> Session:
        if threads not in self._sessions:
            self._sessions[threads] = Session(self.model, threads=threads, **self._settings)
        return self._sessions[threads]

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

    def result(self, case: _RowsRun) -> dict[str, Array]:
        """Return the outputs of a case, and the states that it ends with."""
        if case not in self._results:
            self._results[case] = self.run(self._session(case.threads or self._threads), case)
        return self._results[case]

    def run(self, session: Session, case: _RowsRun) -> dict[str, Array]:
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

    def _part(self, info: TensorInfo, case: _RowsRun, start: int, end: int) -> Array:
        """Return the rows and tokens of an input."""
        value, length = self._inputs[info.name], self.size(self.sequence)
        for axis, dim in enumerate(info.dims):
            if dim == self.batch:
                value = value.take(case.rows, axis)
            elif length and dim == self.sequence:
                value = value.take(range(start, end), axis)
            elif length and isinstance(dim, str) and value.shape[axis] == length:
                value = value.take(range(end), axis)  # a mask covers the tokens before as well
        moved = np.empty(value.size + case.shift, value.dtype)[case.shift :].reshape(value.shape)
        moved[...] = value
        return moved

    def _first_states(self, session: Session, case: _RowsRun) -> dict[str, Array]:
        """Return states to start from where the file has none: empty ones, or zeros."""
        free = self.size(self.sequence) + case.capacity if self.is_static else 0
        empty = {}
        for name, info in zip(session.states, session.state_inputs, strict=True):
            sizes = [len(case.rows) if dim == self.batch else dim for dim in info.dims]
            shape = [size if isinstance(size, int) else free for size in sizes]
            if any(isinstance(dim, str) for dim in info.dims):
                empty[name] = np.zeros(shape, info.numpy_dtype)
        return empty

    def observed(self, threads: int | None) -> Session:
        """Return a session whose outputs are all values of the graph that have a type."""
        copy = model_of(self.model).clone()
        present = set(copy.graph.outputs)
        for node in copy.graph:
            for value in node.outputs:
                if value not in present and value.dtype is not None and value.name:
                    copy.graph.outputs.append(value)
        return Session(copy, threads=threads or self._threads, **self._settings)


_Pair = tuple[_RowsRun, _RowsRun]
"""Cases that must have equal results; the rows of the first are among those of the second."""


def _several(runs: _Runs) -> _RowsRun:
    return _RowsRun("", tuple(range(min(max(1, runs.size(runs.batch)), 4))), threads=1)


def _repeated(runs: _Runs) -> Iterator[_Pair]:
    first = _several(runs)
    for turn in range(1, _REPEATED + 1):
        yield first, replace(first, label=f"run {turn + 1}", shift=turn)


def _threads(runs: _Runs) -> Iterator[_Pair]:
    one = _RowsRun("", tuple(range(max(1, runs.size(runs.batch)))), threads=1)
    for threads in THREADS[1:]:
        yield one, replace(one, label=f"{threads} threads", threads=threads)


def _batches(runs: _Runs) -> Iterator[_Pair]:
    rows = runs.size(runs.batch)
    for size in (size for size in BATCHES if size <= rows):
        # Other rows, and the same ones at other positions.
        turned = tuple(np.roll(np.arange(rows), size)[:size].tolist())
        for chosen in (tuple(range(size)), turned, turned[::-1]):
            for at, row in enumerate(chosen):
                yield _RowsRun("", (row,)), _RowsRun(f"row {at} in a batch of {size}", chosen)


def _chunks(runs: _Runs) -> Iterator[_Pair]:
    whole, length = _several(runs), runs.size(runs.sequence)
    for chunk in (chunk for chunk in _CHUNKS if chunk < length):
        cuts = tuple(range(chunk, length, chunk))
        yield whole, replace(whole, label=f"chunks of {chunk}", cuts=cuts)
    if length > 1:
        yield whole, replace(whole, label="a step after the prompt", cuts=(length - 1,))


def _caches(runs: _Runs) -> Iterator[_Pair]:
    whole = _several(runs)
    for more in _MORE_CAPACITY if runs.is_static else ():
        yield whole, replace(whole, label=f"{more} more places", capacity=more)


_PAIRS: Mapping[str, Callable[[_Runs], Iterator[_Pair]]] = {
    "repeated": _repeated,
    "threads": _threads,
    "batch": _batches,
    "chunks": _chunks,
    "cache": _caches,
}
AXES = tuple(_PAIRS)
"""What may change the order of sums: another run of the same inputs at another address, the number
of threads, the other rows of a batch, the calls that read a prompt, and the capacity of a cache."""


def _deviations(axis: str, runs: _Runs, pairs: Iterator[_Pair]) -> Iterator[Deviation]:
    """Yield the comparisons of each output along an axis."""
    totals: dict[str, list[int]] = {}
    first: dict[str, _Pair] = {}
    for pair in pairs:
        expected, actual = (runs.result(replace(case, label="")) for case in pair)
        for name, value in expected.items():
            mine = _matching(runs, name, actual[name], pair)
            if mine is None:
                continue
            differ, bits = _differing(value, mine)
            total = totals.setdefault(name, [0, 0, 0])
            for index, count in enumerate((value.size, differ, bits)):
                total[index] += count
            if differ:
                first.setdefault(name, pair)
    node = _first_node(runs, next(iter(first.values()))) if first else ""
    for name, (compared, differ, bits) in totals.items():
        label = first[name][1].label if name in first else ""
        yield Deviation(axis, name, compared, differ, bits, label, node if label else "")


def _matching(runs: _Runs, name: str, value: Array, pair: _Pair) -> Array | None:
    """Return the rows of an output of the second case that the first one has; None if unknown."""
    expected, actual = pair
    if expected.rows == actual.rows:
        return value
    axis = runs.axis_of(name, runs.batch)
    places = [actual.rows.index(row) for row in expected.rows]
    return None if axis is None else value.take(places, axis)


def _differing(one: Array, other: Array) -> tuple[int, int]:
    """Return how many elements differ, and in how many bits."""
    if one.shape != other.shape:
        return one.size, one.nbytes * 8
    if one.size == 0:
        return 0, 0
    bytes_of = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (one, other)]
    changed = (bytes_of[0] ^ bytes_of[1]).reshape(one.size, -1)
    return int(changed.any(axis=1).sum()), int(np.unpackbits(changed).sum())


def _first_node(runs: _Runs, pair: _Pair) -> str:
    """Return the first node in graph order whose result differs; empty if none does.

    Each value is an output in these runs, so that onnxruntime fuses fewer nodes.
    """
    nodes = {value.name: node for node in model_of(runs.model).graph for value in node.outputs}
    results = []
    for case in pair:
        session = runs.observed(case.threads)
        results.append(runs.run(session, case))
    for name, node in nodes.items():
        if name not in results[0] or name not in results[1]:
            continue
        expected, actual = results[0][name], results[1][name]
        # Sizes and positions of a chunk are others than those of the prompt.
        if np.issubdtype(expected.dtype, np.integer) or expected.dtype == bool:
            continue
        if pair[0].rows != pair[1].rows:
            if len(expected) != 1 or len(actual) != len(pair[1].rows):
                continue  # rows are not on the first axis
            actual = actual[[pair[1].rows.index(pair[0].rows[0])]]
        if expected.shape == actual.shape and _differing(expected, actual)[0]:
            return f"{node.op_type} {node.name}"
    return ""
