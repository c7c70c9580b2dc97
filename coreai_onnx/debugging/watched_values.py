"""The values inside of a model's graph, in a run of the whole model, beside those of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.references import Call, Reference
from coreai_onnx.debugging.regions import fits
from coreai_onnx.debugging.true_values import as_stored, results_of, true_values
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.model.debug_info import CLASS, SCOPE
from coreai_onnx.model.value_origins import read_origins
from coreai_onnx.runtime.custom_ops import CustomOps
from coreai_onnx.runtime.session import Session


@dataclass(frozen=True)
class ValuePair:
    """A value in one call and execution, and torch's.

    Attributes:
        call: Index of the call.
        name: Name of the value.
        execution: ``"bodies"`` or ``"kernels"``.
        module: Path of the module that computes it.
        module_class: Class of that module.
        actual: The value in the model.
        expected: That of torch.
        ideal: That of torch in float64, from the first operator on.
    """

    call: int
    name: str
    execution: str
    module: str
    module_class: str
    actual: Array
    expected: Array
    ideal: Array


def value_pairs(
    model: ir.Model,
    record: ExportRecord,
    calls: Sequence[Call],
    reference: Reference,
    executions: Mapping[str, bool],
    custom_ops: Sequence[CustomOps] = (),
) -> Iterator[ValuePair]:
    """Run a model with its values as further outputs; yield each beside torch's, in graph order.

    Results that depend on random numbers, or on memory that is not initialized, are left out.

    Args:
        model: The model; it is not changed.
        record: What it was converted from.
        calls: Consecutive calls, whose states are carried.
        reference: Gives the arguments their names.
        executions: Name of each execution, and whether it runs kernels.
        custom_ops: Libraries that the model needs.

    Raises:
        ComparisonError: If the exported program cannot be run on the arguments.
        SessionError: If the model cannot be run.
    """
    names = {value.name or "" for node in model.graph for value in node.outputs}
    origins = read_origins(model.metadata_props, names, dict(results_of(record.program)))
    states: dict[str, torch.Tensor] = {}
    sessions: dict[str, Session] = {}
    watched: dict[str, ir.Node] = {}
    for index, (args, kwargs) in enumerate(calls):
        truth = true_values(record.program, args, kwargs, (), states)
        states |= truth.new_states
        known = {
            name: as_stored(truth.own[of])
            for name, of in origins.items()
            if of in truth.own and of not in truth.undetermined
        }
        if not sessions:
            made, watched = _watched(model, known)
            sessions = {
                name: Session(made, kernels=k, custom_ops=custom_ops)
                for name, k in executions.items()
            }
        for execution, session in sessions.items():
            outputs = session.run(**reference.feeds(session, args, kwargs))
            for name, node in watched.items():
                if name not in known:
                    continue
                module, kind = (node.metadata_props.get(key, "") for key in (SCOPE, CLASS))
                ideal = as_stored(truth.ideal[origins[name]])
                pair = outputs[name], known[name], ideal
                yield ValuePair(index, name, execution, module, kind, *pair)


def _watched(model: ir.Model, known: Mapping[str, Array]) -> tuple[ir.Model, dict[str, ir.Node]]:
    """Return a model with known values as further outputs, and the nodes that compute them."""
    made = model.clone()
    present = set(made.graph.outputs)
    watched = {}
    for node in made.graph:
        for value in node.outputs:
            name = value.name or ""
            if name in known and value not in present and fits(value, known[name]):
                value.type = ir.TensorType(ir.DataType.from_numpy(known[name].dtype))
                made.graph.outputs.append(value)
                watched[name] = node
    return made, watched
