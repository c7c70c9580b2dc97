"""Predictions over tables, in one process or in those of Ray, Spark, Dask and MLflow."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import InputError, SessionError, failures_as
from coreai_onnx.model.files.external_data import data_files
from coreai_onnx.model.interface import TensorInfo, interface
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import ModelSource
from coreai_onnx.runtime.tensors.columns import Array, InputColumn, check_dtype, check_shape
from coreai_onnx.runtime.tensors.tables import columns_of, types_of, with_columns
from coreai_onnx.version import __version__

__all__ = ["Predictor"]

_MASK = "attention_mask"
"""The input that says which elements of a row are not padding, as transformers names it."""
_BLOCKS, _BLOCK = 64, 1 << 16
"""Blocks of a data file that its fingerprint reads: 4 MiB of a file of any size."""


class Predictor:
    """Runs a model on tables of rows; a copy in another process opens the file there.

    ```python
    predict = Predictor("minilm_onnx", inputs={"text": "sentence"}, threads=2)
    predict({"sentence": np.array(["A man is eating."], object)})["sentence_embedding"]
    ```

    An object has paths and options only, so that it can be pickled. Each process opens a file once,
    when it is first called, and refuses one that has changed or another version of this package.

    A table is a mapping of numpy arrays, a pandas ``DataFrame`` or an Arrow ``Table`` or
    ``RecordBatch``. The first axis of every input and output of the model counts rows. Rows of
    different lengths are padded at the end, to the longest of a run or to one of ``lengths``; rows
    of similar length are run together, and results are in the order of the rows.

    Attributes:
        keep: The columns of the table that the result has beside the outputs; None means all.
        settings: Settings of `coreai_onnx.session`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Sequence[str] | Mapping[str, str] | None = None,
        constants: Mapping[str, Any] | None = None,
        keep: Sequence[str] | None = None,
        batch_size: int | None = None,
        lengths: Sequence[int] | None = None,
        fill: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        """Describe the predictions.

        Args:
            model: A ``.onnx`` file, or a folder of `coreai_onnx.export_model` with ``model.onnx``.
            inputs: The column of each input whose column has another name.
            outputs: The outputs to return; a mapping gives the names of their columns. None means
                all.
            constants: Values of inputs that are the same for all rows.
            keep: The columns of the table that the result has beside the outputs; None means all.
            batch_size: Maximum number of rows of a run; None means all rows of a table. A model
                with a fixed number of rows is run with that number.
            lengths: The lengths to pad rows to, so that few shapes occur; a row must not be longer
                than the last. None pads to the longest row of a run.
            fill: The value that pads an input, by its name; 0 for others. An ``attention_mask``
                without a column is 1 for each element and 0 for padding.
            **settings: Settings of `coreai_onnx.session`, such as ``threads``, ``deterministic`` or
                ``provider``.

        Raises:
            LoadError: If there is no such file, or it is not a model.
            SessionError: If the rows depend on their order, because the model has states.
            InputError: If an input, output or size is not possible.
        """
        path = Path(model)
        self._path = (path / "model.onnx" if path.is_dir() else path).resolve()
        self.settings = dict(settings)
        source = ModelSource(self._path).read()
        self._data = tuple(sorted(data_files(source)))
        self._inputs, self._outputs = _signature(source)
        self._print = _fingerprint(self._path, self._data)
        self._version = __version__
        self._constants = {name: np.asarray(value) for name, value in (constants or {}).items()}
        self._columns = {x.name: x.name for x in self._inputs} | dict(inputs or {})
        chosen = [x.name for x in self._outputs] if outputs is None else outputs
        self._results = dict(chosen) if isinstance(chosen, Mapping) else {x: x for x in chosen}
        self.keep = None if keep is None else tuple(keep)
        self._fill = dict(fill or {})
        self._lengths = tuple(sorted(lengths or ()))
        self._rows, self._is_fixed = self._rows_of_run(batch_size)
        self._check_names()

    def __repr__(self) -> str:
        """Return the file, inputs and outputs."""
        columns = ", ".join(f"{x.type_text} of {self._columns[x.name]!r}" for x in self._row_inputs)
        return f"Predictor({str(self._path)!r}: {columns} → {', '.join(self._results.values())})"

    @property
    def nbytes(self) -> int:
        """Size of the model's files, which every process that opens it reads."""
        return sum(file.stat().st_size for file in (self._path, *self._data))

    @property
    def _row_inputs(self) -> list[TensorInfo]:
        return [x for x in self._inputs if x.name not in self._constants]

    def _check_names(self) -> None:
        names = {x.name for x in self._inputs}
        for name in (*self._columns, *self._constants, *self._fill):
            if name not in names:
                raise InputError(f"the model has no input {name!r}; inputs: {', '.join(names)}")
        names = {x.name for x in self._outputs}
        for name in self._results:
            if name not in names:
                raise InputError(f"the model has no output {name!r}; outputs: {', '.join(names)}")
        if self._lengths and self._lengths[0] < 1:
            raise InputError(f"lengths must be positive, got {self._lengths[0]}")

    def _rows_of_run(self, batch_size: int | None) -> tuple[int | None, bool]:
        """Return the most rows of a run, and whether the model needs that number."""
        for info in self._row_inputs:
            if not info.dims:
                raise InputError(f"input {info} has no axis of rows: give it in constants")
        fixed = {x.dims[0] for x in self._row_inputs if isinstance(x.dims[0], int)}
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size must be positive, got {batch_size}")
        if len(fixed) > 1:
            raise InputError(f"inputs have different fixed numbers of rows: {sorted(fixed)}")
        return (fixed.pop(), True) if fixed else (batch_size, False)

    # ---------------------------------------------------------------------------------- checking
    def check(self, schema: Any) -> None:
        """Check the columns of a table before a job starts.

        Args:
            schema: A table, an Arrow or Ray ``Schema``, or the dtypes of columns by name.

        Raises:
            InputError: If a column is missing, has a dtype that an input does not take, or has rows
                of another shape; or an output would replace a column that is kept.
            SessionError: If the file has changed.
        """
        self._check_file()
        types = types_of(schema)
        self._check_columns(types)
        for info in self._row_inputs:
            dtype, shape = types.get(self._columns[info.name], (None, None))
            if dtype is not None:
                check_dtype(info, dtype, self._columns[info.name])
            if shape is not None:
                check_shape(info, shape, self._columns[info.name])

    def reads(self, columns: Iterable[str]) -> list[str]:
        """Return those columns of a table that a call needs, so that a file is read in part."""
        if self.keep is None:
            return list(columns)
        needed = {*self.keep, *(self._columns[x.name] for x in self._row_inputs)}
        return [column for column in columns if column in needed]

    def _check_columns(self, columns: Mapping[str, Any]) -> None:
        for info in self._row_inputs:
            column = self._columns[info.name]
            if column not in columns and info.name != _MASK:
                there = ", ".join(map(str, columns)) or "none"
                raise InputError(f"input {info} needs the column {column!r}; columns: {there}")
        kept = columns if self.keep is None else self.keep
        for column in self.keep or ():
            if column not in columns:
                raise InputError(f"there is no column {column!r} to keep")
        for output, column in self._results.items():
            if column in kept:
                raise InputError(
                    f"output {output!r} would replace the column {column!r}: give outputs as a "
                    f"mapping to columns of other names, or leave the column out of keep"
                )

    def _check_file(self) -> None:
        if self._version != __version__:
            raise SessionError(
                f"the predictor was made by version {self._version} of coreai_onnx, and this "
                f"process has {__version__}"
            )
        if _fingerprint(self._path, self._data) != self._print:
            raise SessionError(f"{self._path} has changed since the predictor was made")

    # --------------------------------------------------------------------------------- predicting
    def open(self) -> None:
        """Open the model in this process, which the first call does otherwise.

        Raises:
            SessionError: If the file has changed or cannot be opened.
        """
        self._shared_session()

    def _shared_session(self) -> _SharedSession:
        """Return the session; predictors of equal settings share it, as the tasks of Dask need."""
        # Settings may be lists or mappings, which are not keys themselves.
        key = pickle.dumps((self._path, self._print, sorted(self.settings.items())))
        # Two threads that make the first predictions must not open the model twice.
        with _opening:
            if key not in _all_opened:
                self._check_file()
                opened = session(self._path, **self.settings)
                _all_opened[key] = _SharedSession(opened, threading.Lock())
            return _all_opened[key]

    def __call__(self, table: Any) -> Any:
        """Return the table with the outputs as columns, in the form in which it was given.

        Raises:
            InputError: If a column or row does not fit an input; the message has the row.
            SessionError: If the file has changed or cannot be opened, or a run fails.
        """
        columns = columns_of(table)
        self._check_columns(columns)
        results = self._predict(columns)
        return with_columns(table, self.keep, results)

    def _predict(self, columns: Mapping[str, Any]) -> dict[str, Array]:
        infos = [x for x in self._row_inputs if self._columns[x.name] in columns]
        prepared = {x.name: InputColumn.of(x, columns[self._columns[x.name]]) for x in infos}
        counts = {len(column.values) for column in prepared.values()}
        if len(counts) != 1:
            raise InputError(f"columns have different numbers of rows: {sorted(counts)}")
        (rows,) = counts
        if rows == 0:
            return {to: self._empty(name) for name, to in self._results.items()}
        order = _order(rows, prepared.values())
        opened = self._shared_session()
        parts = [(chosen, self._run(opened, chosen, prepared)) for chosen in self._chunks(order)]
        return {
            to: _joined(rows, [(c, part[name]) for c, part in parts], fixed=self._fixed(name))
            for name, to in self._results.items()
        }

    def _chunks(self, order: Array) -> Iterator[Array]:
        size = self._rows or len(order)
        for first in range(0, len(order), size):
            yield order[first : first + size]

    def _run(
        self, opened: _SharedSession, rows: Array, columns: Mapping[str, InputColumn]
    ) -> dict[str, Array]:
        count = len(rows)
        if self._is_fixed and self._rows:  # the last run is filled with its last row
            rows = np.concatenate([rows, np.repeat(rows[-1:], self._rows - count)])
        feeds = dict(self._constants)
        for name, column in columns.items():
            feeds[name] = column.batch(rows, self._lengths, self._fill.get(name, 0))
        for info in self._row_inputs:
            if info.name not in feeds:  # a mask: see `_check_columns`
                feeds[info.name] = _mask(info, rows, columns, feeds)
        with opened.lock:
            outputs = run_arrays(opened.session, feeds, list(self._results))
        for name, value in outputs.items():
            if value.ndim == 0 or len(value) != len(rows):
                raise InputError(
                    f"output {name!r} has the shape {list(value.shape)} for {len(rows)} rows: its "
                    f"first axis does not count rows"
                )
        return {name: value[:count] for name, value in outputs.items()}

    def _empty(self, name: str) -> Array:
        if not self._fixed(name):
            return np.empty(0, object)
        info = self._output(name)
        return np.empty((0, *info.dims[1:]), info.numpy_dtype)

    def _output(self, name: str) -> TensorInfo:
        (info,) = [x for x in self._outputs if x.name == name]
        return info

    def _fixed(self, name: str) -> bool:
        """Return whether all rows of an output have one shape; the others are an array each."""
        info = self._output(name)
        return info.dtype != "string" and all(isinstance(dim, int) for dim in info.dims[1:])


def run_arrays(
    opened: Session, feeds: Mapping[str, Array], outputs: Sequence[str] = ()
) -> dict[str, Array]:
    """Run a model whose inputs and outputs may be strings, which `Session.run` does not pass.

    Args:
        opened: The session.
        feeds: All inputs by name; strings are arrays of objects.
        outputs: The outputs to return; none means all.

    Raises:
        InputError: If an input is missing, unknown or has another dtype or shape.
        SessionError: If the run fails.
    """
    names = list(outputs or (x.name for x in opened.outputs))
    if not any(x.dtype == "string" for x in (*opened.inputs, *opened.outputs)):
        results = opened.run(**feeds)
        return {name: np.asarray(results[name]) for name in names}
    if feeds.keys() != {x.name for x in opened.inputs}:
        raise InputError(f"inputs must be {_names(opened.inputs)}, got {', '.join(feeds)}")
    with failures_as(SessionError, "the model cannot be run"):
        values = opened.ort.run(names, dict(feeds))
    return dict(zip(names, values, strict=True))


def _names(infos: Iterable[TensorInfo]) -> str:
    return ", ".join(str(info) for info in infos)


class _SharedSession(NamedTuple):
    session: Session
    lock: threading.Lock  # of runs: a session is used by one thread at a time


_all_opened: dict[bytes, _SharedSession] = {}
_opening = threading.Lock()


def _signature(model: ir.Model) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    signature = interface(model)
    if signature.states:
        names = ", ".join(x.name for x in signature.states)
        raise SessionError(f"the model has states, {names:.80}: its rows depend on their order")
    return signature.inputs, signature.outputs


def _fingerprint(path: Path, data: Sequence[Path]) -> str:
    """Return a digest of a file, and of the sizes and some blocks of its data files.

    Raises:
        SessionError: If a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        digest.update(path.read_bytes())
        for name in data:
            size = name.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with name.open("rb") as file:
                for i in range(_BLOCKS):
                    # Evenly spaced, from the first block to the end of the file.
                    file.seek(i * max(size - _BLOCK, 0) // (_BLOCKS - 1))
                    digest.update(file.read(_BLOCK))
    except OSError as error:
        raise SessionError(f"{error.filename} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def _mask(
    info: TensorInfo, rows: Array, columns: Mapping[str, InputColumn], feeds: Mapping[str, Array]
) -> Array:
    """Return 1 for the elements of rows and 0 for their padding."""
    for name, column in columns.items():
        if column.lengths is not None and not column.is_text:
            present = np.arange(feeds[name].shape[1]) < column.lengths[rows][:, None]
            return present.astype(info.numpy_dtype)
    raise InputError(f"{info} needs a column, since no other input has rows of any length")


def _order(rows: int, columns: Iterable[InputColumn]) -> Array:
    """Return the rows by length, the longest first: memory is too small at once or never."""
    for column in columns:
        if column.lengths is not None:
            return np.argsort(-column.lengths, kind="stable")
    return np.arange(rows)


def _joined(rows: int, parts: Sequence[tuple[Array, Array]], *, fixed: bool) -> Array:
    """Return results in the order of the rows."""
    _, first = parts[0]
    joined = np.empty((rows, *first.shape[1:]), first.dtype) if fixed else np.empty(rows, object)
    for chosen, part in parts:
        if fixed:
            joined[chosen] = part
        else:  # one by one, since numpy would make one array of those with one shape
            for row, value in zip(chosen, part, strict=True):
                joined[row] = value
    return joined
