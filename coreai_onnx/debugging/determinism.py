"""Comparison of a file with itself, bit by bit: in batches, threads and chunks, on targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.row_runs import RowsRun, Runs
from coreai_onnx.errors import ComparisonError
from coreai_onnx.messages import render
from coreai_onnx.runtime.sessions.sources import Source, model_of

THREADS = (1, 2, 3, 4, 8, 16)
BATCHES = (2, 3, 4, 5, 8, 16, 33, 64)
_CHUNKS = (1, 2, 3, 5, 7, 16)
_REPEATED = 4
_MORE_CAPACITY = (1, 37, 128)


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
    runs = Runs(model, inputs, batch, sequence, settings)
    deviations: list[Deviation] = []
    for axis in AXES:
        if axis in (axes or AXES):
            deviations += _deviations(axis, runs, _PAIRS[axis](runs))
    return Determinism(tuple(deviations))


_Pair = tuple[RowsRun, RowsRun]
"""Cases that must have equal results; the rows of the first are among those of the second."""


def _several(runs: Runs) -> RowsRun:
    return RowsRun("", tuple(range(min(max(1, runs.size(runs.batch)), 4))), threads=1)


def _repeated(runs: Runs) -> Iterator[_Pair]:
    first = _several(runs)
    for turn in range(1, _REPEATED + 1):
        yield first, replace(first, label=f"run {turn + 1}", shift=turn)


def _threads(runs: Runs) -> Iterator[_Pair]:
    one = RowsRun("", tuple(range(max(1, runs.size(runs.batch)))), threads=1)
    for threads in THREADS[1:]:
        yield one, replace(one, label=f"{threads} threads", threads=threads)


def _batches(runs: Runs) -> Iterator[_Pair]:
    rows = runs.size(runs.batch)
    for size in (size for size in BATCHES if size <= rows):
        # Other rows, and the same ones at other positions.
        turned = tuple(np.roll(np.arange(rows), size)[:size].tolist())
        for chosen in (tuple(range(size)), turned, turned[::-1]):
            for at, row in enumerate(chosen):
                yield RowsRun("", (row,)), RowsRun(f"row {at} in a batch of {size}", chosen)


def _chunks(runs: Runs) -> Iterator[_Pair]:
    whole, length = _several(runs), runs.size(runs.sequence)
    for chunk in (chunk for chunk in _CHUNKS if chunk < length):
        cuts = tuple(range(chunk, length, chunk))
        yield whole, replace(whole, label=f"chunks of {chunk}", cuts=cuts)
    if length > 1:
        yield whole, replace(whole, label="a step after the prompt", cuts=(length - 1,))


def _caches(runs: Runs) -> Iterator[_Pair]:
    whole = _several(runs)
    for more in _MORE_CAPACITY if runs.is_static else ():
        yield whole, replace(whole, label=f"{more} more places", capacity=more)


def _targets(runs: Runs) -> Iterator[_Pair]:
    rows = tuple(range(max(1, runs.size(runs.batch))))
    first, *others = runs.targets() or [""]
    for target in others:
        yield (
            RowsRun("", rows, target=first),
            RowsRun(f"{target}, not {first}", rows, target=target),
        )


_PAIRS: Mapping[str, Callable[[Runs], Iterator[_Pair]]] = {
    "repeated": _repeated,
    "threads": _threads,
    "batch": _batches,
    "chunks": _chunks,
    "cache": _caches,
    "targets": _targets,
}
AXES = tuple(_PAIRS)
"""What may change the order of sums: another run of the same inputs at another address, the number
of threads, the other rows of a batch, the calls that read a prompt, the capacity of a cache, and
the instructions of the kernels."""


def _deviations(axis: str, runs: Runs, pairs: Iterator[_Pair]) -> Iterator[Deviation]:
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


def _matching(runs: Runs, name: str, value: Array, pair: _Pair) -> Array | None:
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
    # Bytes, because NaN differs from itself, and -0.0 equals 0.0.
    bytes_of = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (one, other)]
    changed = (bytes_of[0] ^ bytes_of[1]).reshape(one.size, -1)
    return int(changed.any(axis=1).sum()), int(np.unpackbits(changed).sum())


def _first_node(runs: Runs, pair: _Pair) -> str:
    """Return the first node in graph order whose result differs; empty if none does.

    Each value is an output in these runs, so that onnxruntime fuses fewer nodes.
    """
    nodes = {value.name: node for node in model_of(runs.model).graph for value in node.outputs}
    results = []
    for case in pair:
        session = runs.observed(case)
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
