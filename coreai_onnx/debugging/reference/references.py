"""The references of a comparison: what computes the expected results, and what they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import onnx
import onnx_ir as ir
import torch
from torch import nn
from torch.export import ExportedProgram

from coreai_onnx.debugging.reference.random_inputs import random_inputs
from coreai_onnx.debugging.reference.torch_side import (
    Expected,
    InputSet,
    arguments_of,
    by_parameter,
    copied,
    feeds_of,
    leaves_of_result,
    reference_of,
)
from coreai_onnx.debugging.reference.torch_values import tensor_of
from coreai_onnx.debugging.reference.widened import Widened
from coreai_onnx.errors import ComparisonError, failures_as
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.libraries.library import CustomOps
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import HasModel, Source

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments."""
ADVICE = "write it with program.save(path, record=...), and give ExportRecord.load(path)"
_TRAINS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
)
"""Layers that compute something else in training mode."""


@runtime_checkable
class HasRecords(Protocol):
    """A converted program."""

    records: Mapping[str, ExportRecord]

    def record(self) -> ExportRecord:
        """Return what its main entrypoint was converted from."""


class TorchReference:
    """A copy of a module that is run eagerly, keeping its buffers between calls.

    In float64, each call starts from torch's own buffers.
    """

    def __init__(self, subject: object) -> None:
        """Copy the module, so that the user's buffers do not change.

        Args:
            subject: A module, an ``ExportedProgram``, or what else ``convert`` accepts.
        """
        self._module = reference_of(subject)
        self._copy = copied(self._module)
        self._random: dict[str, None] = {}

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Expected:
        """Return the results of the next call, in float64 too; the arguments are not changed.

        Raises:
            ComparisonError: If the module fails on the arguments.
        """
        # The module may write to its arguments, and the caller passes the same ones to the model.
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, (args, dict(kwargs)))
        widened = Widened()
        with torch.no_grad():
            with failures_as(ComparisonError, "the module fails on the arguments"), widened:
                result = self._copy(*args, **kwargs)
            leaves = [leaf for leaf in leaves_of_result(result) if not isinstance(leaf, str)]
            # An output that shares memory with a buffer changes in the next call.
            outputs = [widened.copy(x) if isinstance(x, torch.Tensor) else x for x in leaves]
            buffers = self._copy.named_buffers()
            states: dict[str, object] = {name: widened.copy(buffer) for name, buffer in buffers}
        bound = by_parameter(self._copy, args, kwargs)
        states |= {name: value for name, value in bound.items() if isinstance(value, torch.Tensor)}
        self._random |= widened.random
        return Expected(tuple(outputs), states, args, kwargs, widened)

    def feeds(
        self, session: Session, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, object]:
        """Return the leaves of the arguments by the names of a session's inputs."""
        return feeds_of(session, self._module, args, kwargs)

    def leaves(self, session: Session, expected: Expected) -> Iterator[tuple[TensorInfo, object]]:
        """Yield each output with the value that torch returned or wrote to an input.

        Raises:
            ComparisonError: If the module returned another number of values.
        """
        mutated = session.mutated_inputs
        returned = [info for info in session.outputs if info.name not in mutated]
        _check_count(len(expected.outputs), returned, "the module returned {} values")
        yield from zip(returned, expected.outputs, strict=True)
        if mutated:
            # These are the arguments after the call: the module has written to them.
            inputs = self.feeds(session, expected.args, dict(expected.kwargs))
            written = [info for info in session.outputs if info.name in mutated]
            yield from ((info, inputs[mutated[info.name]]) for info in written)

    @property
    def notes(self) -> Iterator[str]:
        """Random operators, and layers in training mode."""
        if self._random:
            names = ", ".join(self._random)
            yield f"the reference draws random numbers ({names}), so results may differ"
        training = [
            name
            for name, m in self._module.named_modules()
            if m.training and isinstance(m, _TRAINS)
        ]
        if training:
            yield f"{training[0]} is in training mode: call eval() before the conversion"


class SessionReference:
    """Another model, on its function bodies."""

    notes: Iterator[str] = iter(())

    def __init__(self, source: Source, custom_ops: Sequence[CustomOps] = ()) -> None:
        """Open the model."""
        self._session = Session(source, kernels=False, custom_ops=custom_ops)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Expected:
        """Return the results of the next call."""
        outputs = self._session.run(*args, **kwargs)
        states = dict(outputs.states) if self._session.states else {}
        return Expected(tuple(outputs.values()), states, args, kwargs)

    def feeds(
        self, session: Session, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, object]:
        """Return positional arguments in the order of a session's inputs, others by name."""
        names = (info.name for info in session.inputs)
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def leaves(self, session: Session, expected: Expected) -> Iterator[tuple[TensorInfo, object]]:
        """Yield each output with that of the other model: of the same name, or else in order.

        Raises:
            ComparisonError: If the other model has another number of outputs.
        """
        _check_count(len(expected.outputs), session.outputs, "the reference has {} outputs")
        named = dict(zip((x.name for x in self._session.outputs), expected.outputs, strict=True))
        if named.keys() == {info.name for info in session.outputs}:
            yield from ((info, named[info.name]) for info in session.outputs)
        else:
            yield from zip(session.outputs, expected.outputs, strict=True)


Reference = TorchReference | SessionReference


def _check_count(count: int, infos: Sequence[TensorInfo], text: str) -> None:
    if count != len(infos):
        names = ", ".join(info.name for info in infos)
        raise ComparisonError(f"{text.format(count)}, the model has {len(infos)} outputs: {names}")


def reference_for(
    model: Source, subject: object, custom_ops: Sequence[CustomOps] = ()
) -> Reference:
    """Return the reference that a user gave.

    Args:
        model: The model that is compared.
        subject: As for `compare`; None for the record of the model's conversion.
        custom_ops: Libraries that another model needs.

    Raises:
        ComparisonError: If it is None, and the model has no record.
        StagingError: If it cannot be used as a reference.
    """
    if isinstance(subject, str | PathLike) and Path(subject).suffix == ".pt2":
        subject = ExportRecord.load(subject)
    if subject is None or isinstance(subject, ExportRecord):
        return TorchReference(record_of(model, subject).program)
    other = str | PathLike | bytes | onnx.ModelProto | ir.Model
    # A torch module may well have an attribute `model`, which is all that HasModel asks for.
    if isinstance(subject, other) or (
        isinstance(subject, HasModel) and not isinstance(subject, torch.nn.Module)
    ):
        return SessionReference(subject, custom_ops)
    return TorchReference(subject)


def record_of(model: Source, reference: object) -> ExportRecord:
    """Return the record that is a reference, or that of the model's conversion.

    Raises:
        ComparisonError: If there is none.
    """
    if isinstance(reference, ExportRecord):
        return reference
    if isinstance(reference, ExportedProgram):
        return ExportRecord(functional(reference))
    if isinstance(model, HasRecords) and model.records:
        record: ExportRecord = model.record()
        return record
    raise ComparisonError(f"there is no record of the model's conversion\n  {ADVICE}")


def calls_of_record(record: ExportRecord, inputs: InputSet | list[InputSet] | None) -> list[Call]:
    """Return the calls that were given, or the example of a record.

    Raises:
        ComparisonError: If there are none.
    """
    if inputs is None and record.example is None:
        raise ComparisonError("the record has no example inputs: give inputs=")
    return _split(inputs, record.example)


def _split(inputs: InputSet | list[InputSet] | None, example: Call | None) -> list[Call]:
    """Return the calls that were given, or else the example."""
    if inputs is None:
        return [] if example is None else [example]
    return [arguments_of(one) for one in (inputs if isinstance(inputs, list) else [inputs])]


def calls_of(
    model: Source,
    reference: object,
    inputs: InputSet | list[InputSet] | None,
    custom_ops: Sequence[CustomOps] = (),
) -> list[Call]:
    """Return the calls to compare: those given, the example of the record, or a random one.

    Raises:
        ComparisonError: If there is no example, and random inputs cannot be made.
    """
    try:
        record: ExportRecord | None = record_of(model, reference)
    except ComparisonError:
        # A model without a record can still be run on random inputs.
        record = None
    example = None if record is None else record.example
    if inputs is not None or example is not None:
        return _split(inputs, example)
    arrays = random_inputs(Session(model, kernels=False, custom_ops=custom_ops))
    torch_side = not isinstance(reference, str | PathLike | bytes | onnx.ModelProto | ir.Model)
    return [(tuple(map(tensor_of, arrays.values())) if torch_side else tuple(arrays.values()), {})]
