"""Comparison of a model's executions with the torch module that it was converted from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.debugging.difference import Array, Difference, difference
from coreai_onnx.debugging.tolerances import Tolerances, tolerance_of
from coreai_onnx.debugging.torch_side import (
    EagerModule,
    Expected,
    InputSet,
    arguments_of,
    as_array,
    feeds_of,
    reference_of,
)
from coreai_onnx.errors import ComparisonError, failures_as
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.library import kernels_built
from coreai_onnx.runtime.outputs import Outputs
from coreai_onnx.runtime.session import Session, Source
from coreai_onnx.table import render


@dataclass(frozen=True)
class Row:
    """One output of one call in one execution, against torch.

    Attributes:
        call: Index of the input set.
        output: Output name; the name of a state has the prefix ``state``.
        execution: ``"bodies"`` or ``"kernels"``.
        dtype: torch's dtype.
        shape: torch's shape.
        difference: The difference from torch.
    """

    call: int
    output: str
    execution: str
    dtype: str
    shape: tuple[int, ...]
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """Every output of every call and execution against torch; prints as a table.

    Attributes:
        rows: The comparisons.
        kernels_compared: Whether the kernels were built and compared.
    """

    rows: tuple[Row, ...]
    kernels_compared: bool

    @property
    def ok(self) -> bool:
        """Whether every row is within its tolerance, with equal dtype and shape."""
        return all(row.difference.ok for row in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that are not ok."""
        return tuple(row for row in self.rows if not row.difference.ok)

    def worst(self, execution: str) -> Difference:
        """Return the difference with the largest absolute error in ``"bodies"`` or ``"kernels"``.

        Raises:
            KeyError: If that execution was not compared.
        """
        candidates = [row.difference for row in self.rows if row.execution == execution]
        if not candidates:
            raise KeyError(f"{execution} was not compared")
        return max(candidates, key=lambda d: (not d.ok, d.max_abs))

    def assert_close(self) -> None:
        """Raise an error unless `ok`.

        Raises:
            ComparisonError: If the comparison failed; an ``AssertionError`` whose message is the
                table.
        """
        if not self.ok:
            raise ComparisonError(
                f"{len(self.failures)} of {len(self.rows)} outputs differ from torch\n{self}"
            )

    def __str__(self) -> str:
        """Return the table, with a note if the kernels were not compared."""
        header = ("call", "output", "execution", "dtype", "shape", "max abs", "max rel", "ulps", "")
        table = render(header, [_cells(row) for row in self.rows])
        if self.kernels_compared:
            return table
        return f"{table}\n{_NO_KERNELS}"


def compare(
    path_or_program: Source,
    module: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    inputs: InputSet | list[InputSet],
    *,
    tolerances: Tolerances = None,
) -> Comparison:
    """Run a model's bodies and kernels, and the torch module eagerly, on the same inputs.

    The calls are consecutive: the states of the sessions, and the buffers of a copy of the module,
    are carried from one input set to the next. States that are buffers or arguments of the module
    are compared too. The module's buffers should have the values that they had at conversion.

    Args:
        path_or_program: As for `session`.
        module: The module, in the mode (``eval()``) in which it was converted, or another object
            that `convert` accepts. It is not changed.
        inputs: One call's arguments, a tuple of positional or a dict of keyword arguments; or a
            **list** of such calls.
        tolerances: (relative, absolute) for everything, or by output or dtype name. The default is
            that of ``torch.testing.assert_close`` for each dtype.

    Returns:
        The comparison: print it, or call ``assert_close()``.

    Raises:
        SessionError: If the model cannot be loaded or run.
        ComparisonError: If the module's arguments or results do not match the model's.
    """
    calls = [arguments_of(one) for one in (inputs if isinstance(inputs, list) else [inputs])]
    reference = reference_of(module)
    eager = EagerModule(reference)
    expected = [eager.call(args, kwargs) for args, kwargs in calls]
    sessions = {"bodies": Session(path_or_program, kernels=False)}
    if kernels_built():
        sessions["kernels"] = Session(path_or_program, kernels=True)
    with failures_as(ComparisonError, "the model's results cannot be compared"):
        rows = _rows(sessions, reference, calls, expected, tolerances)
    return Comparison(tuple(rows), "kernels" in sessions)


def _rows(
    sessions: Mapping[str, Session],
    reference: torch.nn.Module,
    calls: Sequence[tuple[Any, Any]],
    expected: Sequence[Expected],
    tolerances: Tolerances,
) -> list[Row]:
    """Run every call in every session and compare its results."""
    rows: list[Row] = []
    for index, (args, kwargs) in enumerate(calls):
        for execution, session in sessions.items():
            outputs = session.run(**feeds_of(session, reference, args, kwargs))
            for name, dtype, actual, wanted in _pairs(session, reference, outputs, expected[index]):
                diff = difference(actual, wanted, tolerance_of(name, dtype, tolerances))
                rows.append(Row(index, name, execution, dtype, wanted.shape, diff))
    return rows


_NO_KERNELS = "kernels: not built, so not compared (ops_library_path() says how to build them)"


def _pairs(
    session: Session, reference: torch.nn.Module, outputs: Outputs, expected: Expected
) -> Iterator[tuple[str, str, Array, Array]]:
    """Yield (name, dtype, actual, expected) for the outputs and the states that torch also has."""
    for info, leaf in _leaves_of_outputs(session, reference, expected):
        wanted = as_array(leaf, info)
        yield info.name, _dtype(leaf, wanted), outputs[info.name], wanted
    new_states = outputs.states if session.states else {}
    for info in session.state_inputs:
        if info.name in expected.states:
            leaf = expected.states[info.name]
            wanted = as_array(leaf, info)
            yield f"state {info.name}", _dtype(leaf, wanted), new_states[info.name], wanted


def _leaves_of_outputs(
    session: Session, reference: torch.nn.Module, expected: Expected
) -> Iterator[tuple[TensorInfo, object]]:
    """Yield each output with the value that torch has for it, returned or written to an input."""
    mutated = session.mutated_inputs
    returned = [info for info in session.outputs if info.name not in mutated]
    if len(returned) != len(expected.outputs):
        raise ComparisonError(
            f"the module returned {len(expected.outputs)} values, the model has {len(returned)} "
            f"outputs: {', '.join(info.name for info in returned)}"
        )
    yield from zip(returned, expected.outputs, strict=True)
    if mutated:
        inputs = feeds_of(session, reference, expected.args, expected.kwargs)
        written = [info for info in session.outputs if info.name in mutated]
        yield from ((info, inputs[mutated[info.name]]) for info in written)


def _dtype(leaf: object, wanted: Array) -> str:
    """Return torch's dtype of a result: the array of a complex32 tensor is complex64."""
    half = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.complex32
    return "complex32" if half else wanted.dtype.name


def _cells(row: Row) -> Sequence[object]:
    diff = row.difference
    shape = f"[{', '.join(map(str, row.shape))}]"
    if diff.problem:
        return row.call, row.output, row.execution, row.dtype, shape, "-", "-", "-", diff.problem
    verdict = "ok" if diff.ok else f"{diff.mismatched} of {diff.size} differ"
    numbers = (f"{diff.max_abs:.2e}", f"{diff.max_rel:.2e}", f"{diff.ulps:.1f}")
    return row.call, row.output, row.execution, row.dtype, shape, *numbers, verdict
