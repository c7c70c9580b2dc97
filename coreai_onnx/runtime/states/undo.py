"""The undo log of updates in place: what a call overwrites is restored if the call fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime as ort

from coreai_onnx.runtime.states.binding import Binding, Values
from coreai_onnx.runtime.tensors.expressions import evaluated, names_in
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.runtime.tensors.values import to_ort

Index = Any
"""What numpy takes as an index."""


@dataclass(frozen=True)
class WrittenElements:
    """The elements that ``ScatterND`` or ``ScatterElements`` write.

    Attributes:
        output: The output of the positions model with the indices.
        axis: The axis of ``ScatterElements``; None for ``ScatterND``.
    """

    output: str
    axis: int | None

    def index(
        self, shape: tuple[int, ...], results: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> Index:
        """Return the index of the elements in an array."""
        del sizes
        indices = results[self.output]
        if self.axis is None:
            axes = range(indices.shape[-1])
            return tuple(_clipped(indices[..., i], shape[i]) for i in axes)
        index: list[Array] = list(np.ogrid[tuple(slice(size) for size in indices.shape)])
        index[self.axis] = _clipped(indices, shape[self.axis])
        return tuple(index)


@dataclass(frozen=True)
class WrittenRows:
    """The rows that ``kv_cache_update`` or ``TensorScatter`` write.

    Attributes:
        output: The output of the positions model with the first row, for all or each of the batch;
            empty for 0.
        axis: The axis of the rows.
        length: How many there are; the name of a dim, or an expression, if that is not fixed.
    """

    output: str
    axis: int
    length: int | str | None

    def index(
        self, shape: tuple[int, ...], results: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> Index:
        """Return the index of the rows in an array."""
        capacity, between = shape[self.axis], (slice(None),) * (self.axis - 1)
        (length,) = evaluated([self.length], sizes) or (capacity,)
        first = results[self.output].reshape(-1).tolist() if self.output else [0]
        start = first[0]
        # The usual case. A slice is copied in blocks; an array of rows is gathered row by row.
        if 0 <= start <= capacity - length and first.count(start) == len(first):
            return slice(None), *between, slice(start, start + length)
        # as a ring, or from the end
        rows = (np.array(first)[:, None] + np.arange(length)) % capacity
        return np.arange(shape[0])[:, None], *between, rows


Write = WrittenElements | WrittenRows


@dataclass(frozen=True)
class Recipe:
    """How the positions that a call writes to are computed before it.

    Attributes:
        writes: What is written to each state.
        shapes: The inputs of the computation that are shapes of values, by name.
        outputs: The names of its results.
        expressions: They as expressions of dims; empty where one is none.
        model: The computation as a serialized model; empty if all are expressions.
    """

    writes: Mapping[str, Write]
    shapes: Mapping[str, tuple[int | str | None, ...]]
    outputs: Sequence[str]
    expressions: Sequence[str]
    model: bytes

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as values of JSON."""
        writes = {name: (type(x).__name__, *vars(x).values()) for name, x in self.writes.items()}
        return vars(self) | {"writes": writes, "model": self.model.hex()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Recipe:
        """Return the recipe of `to_json`."""
        kinds: dict[str, type[Write]] = {x.__name__: x for x in (WrittenElements, WrittenRows)}
        return cls(
            {name: kinds[kind](*values) for name, (kind, *values) in entry["writes"].items()},
            {name: tuple(dims) for name, dims in entry["shapes"].items()},
            entry["outputs"],
            entry["expressions"],
            bytes.fromhex(entry["model"]),
        )


@dataclass(frozen=True)
class Overwritten:
    """States that an update writes in the same way.

    Attributes:
        write: The elements that it writes.
        states: The states, with an axis of states before their own.
    """

    write: Write
    states: Array


@dataclass(frozen=True)
class Saved:
    """Elements as they were before a call.

    Attributes:
        array: The array that contains them.
        index: Their index in it.
        elements: Copies of them.
    """

    array: Array
    index: Index
    elements: Array

    def restore(self) -> None:
        """Write the elements back."""
        self.array[self.index] = self.elements


class UndoLog:
    """Saves the elements of states that a call is about to overwrite.

    Attributes:
        states: The states that may be updated in place: it is safe, and what is overwritten is
            known before the call.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Prepare the computation of the positions."""
        self._writes, self._shapes = recipe.writes, recipe.shapes
        self._positions = computation(recipe)
        # If onnxruntime refuses the model of the positions, no failed call could be undone.
        self.states = frozenset(() if self._positions is None else self._writes)

    def overwritten(self, arrays: Mapping[str, Array]) -> list[Overwritten]:
        """Group the states that calls update in place, given as arrays in their memory."""
        groups: dict[object, tuple[Write, list[Array]]] = {}
        for name, array in arrays.items():
            write = self._writes[name]
            key = write, array.dtype, array.shape
            groups.setdefault(key, (write, []))[1].append(array)
        return [
            Overwritten(write, block)
            for write, group in groups.values()
            for block in _blocks(group)
        ]

    def save(
        self,
        overwritten: Sequence[Overwritten],
        feeds: dict[str, ort.OrtValue],
        sizes: Mapping[str, int],
    ) -> list[Saved]:
        """Copy what a call overwrites.

        Args:
            overwritten: The states that the call updates in place.
            feeds: The inputs of the call.
            sizes: The sizes of its symbolic dims.
        """
        if not overwritten:
            return []
        results = self._results(feeds, sizes)
        saved = []
        for one in overwritten:
            # With unknown positions the whole state is saved.
            index: Index = ...
            if results is not None:
                shape = one.states.shape[1:]
                index = slice(None), *one.write.index(shape, results, sizes)
            saved.append(Saved(one.states, index, one.states[index].copy()))
        return saved

    def _results(
        self, feeds: dict[str, ort.OrtValue], sizes: Mapping[str, int]
    ) -> Mapping[str, Array] | None:
        """Return the positions that a call writes to; None if they cannot be computed."""
        shapes = {}
        for name, dims in self._shapes.items():
            shape = evaluated(dims, sizes)
            if shape is None:
                return None
            shapes[name] = to_ort(np.array(shape, np.int64))
        assert self._positions is not None
        try:
            return self._positions(feeds | shapes, sizes)
        except Exception:  # noqa: BLE001 - the call itself will report it
            return None


def _blocks(arrays: list[Array]) -> list[Array]:
    """Return arrays of one type with an axis before their own; one array if they are one block."""
    arrays = sorted(arrays, key=_address)
    steps = {_address(b) - _address(a) for a, b in pairwise(arrays)}
    if len(steps) == 1 and len({id(array.base) for array in arrays}) == 1:
        first = arrays[0]
        shape, strides = (len(arrays), *first.shape), (*steps, *first.strides)
        return [np.lib.stride_tricks.as_strided(first, shape, strides)]
    return [array[np.newaxis] for array in arrays]


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _clipped(indices: Array, size: int) -> Array:
    """Bring indices that the call will refuse within an axis."""
    return np.clip(indices, -size, size - 1)


Computation = Callable[[Values, Mapping[str, int]], Mapping[str, Array]]
"""Returns the outputs of a model by name, from its inputs and the sizes of their dims; may raise
any exception."""


def computation(recipe: Recipe) -> Computation | None:
    """Return the computation of a few integers; None if onnxruntime refuses the model of them.

    The positions of a decoder follow from dims: ``total_sequence_length - sequence_length``. In
    onnxruntime they took 0.11 ms, because its code is not in the cache after a token of 6 ms:
    "Calls with a static cache" in docs/internals/performance_log.md.
    """
    if not recipe.model:
        return partial(_evaluate, recipe.outputs, recipe.expressions)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # A few integers: threads would cost more than they save.
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(recipe.model, options)
    except Exception:  # noqa: BLE001 - onnxruntime's exceptions share no base class below Exception
        return None
    return partial(
        _run, session, [value.name for value in session.get_inputs()], list(recipe.outputs)
    )


def is_computed_from_dims(expressions: Sequence[str]) -> bool:
    """Whether all results of a computation are expressions of dims."""
    # With any sizes: a float or a name that is not in parentheses would fail with all.
    sizes = dict.fromkeys(names_in(" + ".join(expressions)), 1)
    return evaluated(expressions, sizes) is not None


def _evaluate(
    names: Sequence[str], texts: Sequence[str], feeds: Values, sizes: Mapping[str, int]
) -> dict[str, Array]:
    del feeds
    values = evaluated(texts, sizes)
    if values is None:
        raise KeyError(texts)
    return {name: np.array([value]) for name, value in zip(names, values, strict=True)}


def _run(
    session: ort.InferenceSession,
    inputs: list[str],
    outputs: list[str],
    feeds: Values,
    sizes: Mapping[str, int],
) -> dict[str, Array]:
    del sizes
    values = Binding(session, outputs).run({name: feeds[name] for name in inputs}, {})
    return {name: value.numpy() for name, value in values.items()}
