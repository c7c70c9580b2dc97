"""Comparison of a model's executions with torch, or with another model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.debugging.blaming.error_report import write_comparison_page
from coreai_onnx.debugging.comparing.other_runtime import OtherRuntime
from coreai_onnx.debugging.difference import (
    STATEMENT,
    UNDEFINED,
    Array,
    Difference,
    Tolerances,
    histogram_rows,
)
from coreai_onnx.debugging.reference.compared_row import (
    NUMBERS,
    Row,
    allowed_errors,
    badness,
    cells,
    compared_row,
    shape_text,
    value_row,
    value_text,
)
from coreai_onnx.debugging.reference.references import (
    Call,
    Reference,
    calls_of,
    record_of,
    reference_for,
)
from coreai_onnx.debugging.reference.torch_side import Expected, InputSet, as_array
from coreai_onnx.debugging.reference.watched_values import value_pairs
from coreai_onnx.errors import ComparisonError, failures_as
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.messages import render
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.libraries.library import CustomOps, kernels_built
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.settings import executions_on
from coreai_onnx.runtime.sessions.sources import Source, model_of
from coreai_onnx.runtime.tensors.outputs import Outputs
from coreai_onnx.targets.providers import Choice, chosen_providers


@dataclass(frozen=True)
class Comparison:
    """Every output of every call and execution against a reference; prints as a table.

    Attributes:
        rows: The comparisons of outputs and states.
        kernels_compared: Whether the kernels were built and compared.
        values: The comparisons of the values inside of the graph, if they were requested.
        notes: What makes the reference unsuitable: random operators, training mode; and the
            provider.
        allowed: The allowed errors in words.
        model: The compared model.
    """

    rows: tuple[Row, ...]
    kernels_compared: bool
    values: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    allowed: str = STATEMENT
    model: Source | None = field(default=None, repr=False)

    def to_html(self, path: str | PathLike[str], title: str = "Comparison") -> Path:
        """Write a page with the graph, colored by error; ``values=True`` colors all of it.

        Raises:
            SaveError: If it cannot be written.
        """
        assert self.model is not None
        notes = [f"allowed: {self.allowed}", *self.notes]
        model = model_of(self.model)
        return write_comparison_page(path, model, self.rows, self.values, title=title, notes=notes)

    @property
    def ok(self) -> bool:
        """Whether every row is within what is allowed, with equal dtype and shape."""
        return not self.failures

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows of outputs and states that are not ok."""
        return tuple(row for row in self.rows if not row.ok)

    def worst(self, execution: str) -> Difference:
        """Return the difference with the largest absolute error in an execution, ``"bodies"``.

        Raises:
            KeyError: If that execution was not compared.
        """
        candidates = [row for row in self.rows if row.execution == execution]
        if not candidates:
            raise KeyError(f"{execution} was not compared")
        # A wrong row precedes one whose larger error is allowed.
        return max(candidates, key=lambda row: (not row.ok, row.difference.max_abs)).difference

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

    def histogram(self, output: str) -> str:
        """Return a table of the errors of an output or a value by their order of magnitude.

        Args:
            output: Its name; all calls and executions are counted.

        Raises:
            KeyError: If it was not compared.
        """
        decades = [row.decades for row in (*self.rows, *self.values) if row.output == output]
        if not decades:
            raise KeyError(f"{output} was not compared")
        # What is not finite stands above every error.
        sizes = {name: float("inf" if name == UNDEFINED else name) for d in decades for name in d}
        names = sorted(sizes, key=lambda name: sizes[name], reverse=True)
        total = {name: sum(one.get(name, 0) for one in decades) for name in names}
        return render(("error from", "elements", ""), histogram_rows(total))

    def by_module(self) -> str:
        """Return a table of the values by module: how many, and the worst of them."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.values:
            groups.setdefault((row.module, row.module_class), []).append(row)
        header = ("module", "class", "values", "not ok", "worst", *NUMBERS, "")
        rows = []
        for (module, kind), members in groups.items():
            worst = max(members, key=badness)
            bad = sum(not row.ok for row in members)
            rows.append((module, kind, len(members), bad, value_text(worst), *cells(worst)))
        return render(header, rows)

    def __str__(self) -> str:
        """Return the tables, the allowed errors, and the notes."""
        header = ("call", "output", "execution", "dtype", "shape", *NUMBERS, "")
        rows = [
            (row.call, row.output, row.execution, row.dtype, shape_text(row), *cells(row))
            for row in self.rows
        ]
        parts = [render(header, rows)]
        if self.values:
            parts.append(self.by_module())
        parts.append(f"allowed: {self.allowed}")
        parts += [f"note: {note}" for note in self.notes]
        if not self.kernels_compared:
            parts.append(_NOT_COMPARED if kernels_built() else _NOT_BUILT)
        return "\n".join(parts)


def compare(
    path_or_program: Source,
    reference: torch.nn.Module
    | Callable[..., Any]
    | ExportedProgram
    | ExportRecord
    | Source
    | None = None,
    inputs: InputSet | list[InputSet] | None = None,
    *,
    tolerances: Tolerances = None,
    values: bool = False,
    kernels: bool | None = None,
    custom_ops: Sequence[CustomOps] = (),
    provider: Choice | None = None,
    runtime: str | PathLike[str] | None = None,
) -> Comparison:
    """Run a model's bodies and kernels, and a reference, on the same inputs.

    The calls are consecutive: the states of the sessions, and the buffers of a copy of the module,
    are carried from one input set to the next. States that are buffers or arguments of the module
    are compared too. The module's buffers should have the values that they had at conversion.

    The module is also computed in float64, operator by operator. A result is ok if its distance
    from the float64 result is not much larger than torch's own: see
    :mod:`coreai_onnx.debugging.difference`.

    Args:
        path_or_program: As for `session`.
        reference: The module, in the mode (``eval()``) in which it was converted, or another object
            that `convert` accepts; it is not changed. Or the record of the conversion, or its
            ``.pt2`` file; or another model (a ``.onnx`` file, a model or a program), whose function
            bodies are run. None is the record of a converted program.
        inputs: One call's arguments, a tuple of positional or a dict of keyword arguments; or a
            **list** of such calls. None is the example of the record, or else random inputs of the
            types in the signature.
        tolerances: (relative, absolute) for everything, or by output or dtype name, instead of
            torch's own error. Another model is compared with tolerances always; the default is that
            of ``torch.testing.assert_close`` for each dtype.
        values: Whether to compare the values inside of the graph too, in a run of their own that
            keeps onnxruntime from fusing them. It needs the record.
        kernels: Whether kernels run too; None if they are built and the provider is the CPU.
        custom_ops: Custom op libraries to register in every run, as for `session`.
        provider: The execution provider of the model, as for `session`; a reference has none.
        runtime: A Python with another version of onnxruntime, whose results of the same file are
            compared too. It needs numpy and onnxruntime only.

    Returns:
        The comparison: print it, or call ``assert_close()``.

    Raises:
        SessionError: If the model cannot be loaded or run, or ``runtime`` has no onnxruntime.
        ComparisonError: If the arguments or results of the reference do not match the model's, or
            there is no reference.
    """
    subject = path_or_program
    chosen = reference_for(subject, reference, custom_ops)
    calls = calls_of(subject, reference, inputs, custom_ops)
    executions = executions_on(provider, kernels=kernels, custom_ops=custom_ops)
    expected = [chosen.call(args, kwargs) for args, kwargs in calls]
    sessions = _sessions(subject, executions, runtime)
    with failures_as(ComparisonError, "the model's results cannot be compared"):
        rows = tuple(_rows(sessions, chosen, calls, expected, tolerances))
    record = record_of(subject, reference) if values else None
    pairs = record and value_pairs(model_of(subject), record, calls, chosen, executions)
    inner = tuple(value_row(pair, tolerances) for pair in pairs or ())
    allowed = allowed_errors(rows, tolerances)
    notes = *chosen.notes, *(f"the model ran on {name}" for name in chosen_providers(provider))
    return Comparison(rows, "kernels" in sessions, inner, notes, allowed, subject)


_NOT_BUILT = "kernels: not built, so not compared (ops_library_path() says how to build them)"
_NOT_COMPARED = "kernels: not compared; kernels=True compares them"


def _sessions(
    model: Source,
    executions: Mapping[str, Mapping[str, Any]],
    runtime: str | PathLike[str] | None,
) -> dict[str, Session]:
    """Open a model for each execution, and in another runtime."""
    sessions = {name: Session(model, **settings) for name, settings in executions.items()}
    if runtime is not None:
        other = OtherRuntime(model, runtime)
        sessions[other.name] = other
    return sessions


def _rows(
    sessions: Mapping[str, Session],
    reference: Reference,
    calls: Sequence[Call],
    expected: Sequence[Expected],
    tolerances: Tolerances,
) -> Iterator[Row]:
    """Run every call in every session and compare its results."""
    for index, (args, kwargs) in enumerate(calls):
        for execution, session in sessions.items():
            outputs = session.run(**reference.feeds(session, args, kwargs))
            for name, leaf, info, actual in _pairs(session, reference, outputs, expected[index]):
                array = as_array(leaf, info)
                arrays = actual, array, expected[index].ideal(leaf)
                place = index, name, execution
                yield compared_row(place, _dtype(leaf, array), arrays, tolerances)


def _pairs(
    session: Session, reference: Reference, outputs: Outputs, expected: Expected
) -> Iterator[tuple[str, object, TensorInfo, Array]]:
    """Yield name, reference, type and result of the outputs, and of the states in both."""
    for info, leaf in reference.leaves(session, expected):
        yield info.name, leaf, info, outputs[info.name]
    new_states = outputs.states if session.states else {}
    for info in session.state_inputs:
        if info.name in expected.states:
            yield f"state {info.name}", expected.states[info.name], info, new_states[info.name]


def _dtype(leaf: object, array: Array) -> str:
    """Return torch's dtype of a result: the array of a complex32 tensor is complex64."""
    half = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.complex32
    return "complex32" if half else array.dtype.name
