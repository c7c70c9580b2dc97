"""The undo log of updates in place: what a call overwrites is restored if the call fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.runtime.states.in_place import Update, updated_in_place
from coreai_onnx.runtime.states.positions import PositionsModel, UnknownPositionsError
from coreai_onnx.runtime.tensors.expressions import evaluated
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.runtime.tensors.values import to_ort

Index = Any
"""What numpy takes as an index."""


@dataclass(frozen=True)
class _WrittenElements:
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
class _WrittenRows:
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
        first = results[self.output].reshape(-1) if self.output else np.zeros(1, np.int64)
        start = int(first[0])
        # The usual case. A slice is copied in blocks; an array of rows is gathered row by row.
        if 0 <= start <= capacity - length and (first == start).all():
            return slice(None), *between, slice(start, start + length)
        rows = (first[:, None] + np.arange(length)) % capacity  # as a ring, or from the end
        return np.arange(shape[0])[:, None], *between, rows


@dataclass(frozen=True)
class Saved:
    """Elements as they were before a call.

    Attributes:
        elements: The array, an index in it, and copies of the elements there.
    """

    elements: Sequence[tuple[Array, Index, Array]]

    def restore(self) -> None:
        """Write the elements back."""
        for array, index, old in self.elements:
            array[index] = old


class UndoLog:
    """Saves the elements of states that a call is about to overwrite.

    Attributes:
        states: The states that may be updated in place: it is safe, and what is overwritten is
            known before the call.
    """

    def __init__(self, model: ir.Model) -> None:
        """Find the updates of a model, and open the model of their positions."""
        positions = PositionsModel(model)
        self._writes: dict[str, _WrittenElements | _WrittenRows] = {}
        for name, update in updated_in_place(model).items():
            try:
                self._writes[name] = _write(update, positions)
            except UnknownPositionsError:
                continue
        self._shapes = positions.shapes
        self._session = _session(positions.build()) if positions.outputs else None
        self._inputs, self._outputs = _names(self._session)
        # If onnxruntime refuses the model of the positions, no failed call could be undone.
        known = self._session is not None or not positions.outputs
        self.states = frozenset(self._writes if known else ())

    def save(
        self,
        arrays: Mapping[str, Array],
        feeds: Mapping[str, ort.OrtValue],
        sizes: Mapping[str, int],
    ) -> Saved:
        """Copy what a call overwrites.

        Args:
            arrays: The memory of the states that the call updates in place.
            feeds: The inputs of the call.
            sizes: The sizes of its symbolic dims.
        """
        found = self._positions(feeds, sizes)
        known: dict[object, Index] = {}  # most states of a decoder are written at one place
        saved: list[tuple[Array, Index, Array]] = []
        for name, array in arrays.items():
            write, shape = self._writes[name], array.shape
            # With unknown positions (an ellipsis) the whole state is saved.
            if (write, shape) not in known:
                known[write, shape] = ... if found is None else write.index(shape, found, sizes)
            index = known[write, shape]
            saved.append((array, index, array[index].copy()))
        return Saved(saved)

    def _positions(
        self, feeds: Mapping[str, ort.OrtValue], sizes: Mapping[str, int]
    ) -> dict[str, Array] | None:
        """Return the positions that a call writes to; None if they cannot be computed."""
        if self._session is None:
            return {}
        given = dict(feeds)
        for name, dims in self._shapes.items():
            shape = evaluated(dims, sizes)
            if shape is None:
                return None
            given[name] = to_ort(np.array(shape, np.int64))
        try:
            binding = self._session.io_binding()  # 10 µs a call; run_with_ort_values takes 40
            for name in self._inputs:
                binding.bind_ortvalue_input(name, given[name])
            for name in self._outputs:
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
            values = binding.get_outputs()
        except Exception:  # noqa: BLE001 - the call itself will report it
            return None
        return {name: value.numpy() for name, value in zip(self._outputs, values, strict=True)}


def _write(update: Update, positions: PositionsModel) -> _WrittenElements | _WrittenRows:
    """Describe what an update writes, and add its positions to the model of them.

    Raises:
        UnknownPositionsError: If they are not known before the call.
    """
    attribute = update.node.attributes.get("axis")
    if attribute is not None and attribute.is_ref():
        raise UnknownPositionsError
    axis = None if attribute is None else attribute.as_int()
    if not update.writes_rows:
        scatters_along = update.node.op_type == "ScatterElements"
        return _WrittenElements(positions.add(update), (axis or 0) if scatters_along else None)
    dims = positions.shape(update)
    axis = 2 if update.node.domain else -2 if axis is None else axis
    if not -len(dims) < axis < len(dims) or axis % len(dims) == 0:  # axis 0 is the batch
        raise UnknownPositionsError
    return _WrittenRows(positions.add(update), axis % len(dims), dims[axis])


def _session(model: ir.Model) -> ort.InferenceSession | None:
    """Open the model of the positions; None if onnxruntime refuses it, as it may any file."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # A few integers: threads would cost more than they save.
    options.intra_op_num_threads = 1
    try:
        return ort.InferenceSession(to_proto(model).SerializeToString(), options)
    except Exception:  # noqa: BLE001 - onnxruntime's exceptions share no base class below Exception
        return None


def _names(session: ort.InferenceSession | None) -> tuple[list[str], list[str]]:
    """Return the inputs and outputs of the model of the positions."""
    if session is None:
        return [], []
    return [x.name for x in session.get_inputs()], [x.name for x in session.get_outputs()]


def _clipped(indices: Array, size: int) -> Array:
    """Bring indices that the call will refuse within an axis."""
    return np.clip(indices, -size, size - 1)


@contextmanager
def undone_if_it_fails(
    log: UndoLog | None,
    overwritten: Mapping[str, Array],
    feeds: Mapping[str, ort.OrtValue],
    sizes: Mapping[str, int],
) -> Iterator[None]:
    """Restore the states that a call updates in place if it fails, or Ctrl-C ends it.

    Args:
        log: The undo log of the model, if it has updates in place.
        overwritten: The states that the call updates in place, as arrays in their memory.
        feeds: The inputs of the call.
        sizes: The sizes of its symbolic dims.
    """
    if log is None or not overwritten:
        yield
        return
    saved = log.save(overwritten, feeds, sizes)
    try:
        yield
    except BaseException:
        saved.restore()
        raise
