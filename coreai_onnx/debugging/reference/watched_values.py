"""The values inside of a model's graph, in a run of the whole model, beside those of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.reference.references import Call, Reference
from coreai_onnx.debugging.reference.regions import fits
from coreai_onnx.debugging.reference.step_outputs import (
    StepOutput,
    Steps,
    add_step_outputs,
    step_values,
)
from coreai_onnx.debugging.reference.torch_values import (
    as_stored,
    leaves_of,
    results_of,
    torch_values,
)
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.model.provenance.debug_info import CLASS, SCOPE
from coreai_onnx.model.provenance.source_lines import read_inner_origins, read_origins
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Outputs


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
        step: The iteration of the loop that computes it; None outside of loops.
    """

    call: int
    name: str
    execution: str
    module: str
    module_class: str
    actual: Array
    expected: Array
    ideal: Array
    step: int | None = None


def value_pairs(
    model: ir.Model,
    record: ExportRecord,
    calls: Sequence[Call],
    reference: Reference,
    executions: Mapping[str, Mapping[str, Any]],
) -> Iterator[ValuePair]:
    """Run a model with its values as further outputs; yield each beside torch's, in graph order.

    Values in the graphs of ``If``, ``Loop`` and ``Scan`` follow, with a pair for each step.
    Results that depend on random numbers, or on memory that is not initialized, are left out.

    Args:
        model: The model; it is not changed.
        record: What it was converted from.
        calls: Consecutive calls, whose states are carried.
        reference: Gives the arguments their names.
        executions: Name of each execution, and the settings of its session.

    Raises:
        ComparisonError: If the exported program cannot be run on the arguments.
        SessionError: If the model cannot be run.
    """
    names = {value.name or "" for node in model.graph for value in node.outputs}
    origins = read_origins(model.metadata_props, names, dict(results_of(record.program)))
    states: dict[str, torch.Tensor] = {}
    sessions: dict[str, Session] = {}
    watched: dict[str, ir.Node] = {}
    inner: list[StepOutput] = []
    inside = _inner_origins(model)
    for index, (args, kwargs) in enumerate(calls):
        leaves = leaves_of(record.program, args, kwargs)
        values = torch_values(record.program, leaves, (), states)
        states |= values.new_states
        stored = {
            name: as_stored(values.results[of])
            for name, of in origins.items()
            if of in values.results and of not in values.undetermined
        }
        # Not earlier: which values of the model have torch's type is known after torch has run.
        if not sessions:
            copy, watched = _watched(model, stored)
            inner = add_step_outputs(copy.graph, inside)
            copy.graph.outputs.extend(one.outer for one in inner)
            sessions = {name: Session(copy, **how) for name, how in executions.items()}
        steps = step_values(record.program, values.inputs) if inner else {}
        for execution, session in sessions.items():
            outputs = session.run(**reference.feeds(session, args, kwargs))
            for name, node in watched.items():
                # A value may be undetermined in some calls only, as when elements of a sort are
                # equal.
                if name not in stored:
                    continue
                module, kind = (node.metadata_props.get(key, "") for key in (SCOPE, CLASS))
                ideal = as_stored(values.ideal[origins[name]])
                pair = outputs[name], stored[name], ideal
                yield ValuePair(index, name, execution, module, kind, *pair)
            yield from _step_pairs((index, execution), inner, inside, steps, outputs)


def _inner_origins(model: ir.Model) -> dict[str, str]:
    """Map the values in the graphs of nodes to their results of the exported program."""
    names = {
        value.name or ""
        for node in model.graph.all_nodes()
        if node.graph is not model.graph
        for value in node.outputs
    }
    return read_inner_origins(model.metadata_props, names)


def _step_pairs(
    run: tuple[int, str],
    inner: Sequence[StepOutput],
    origins: Mapping[str, str],
    steps: Mapping[str, Steps],
    outputs: Outputs,
) -> Iterator[ValuePair]:
    """Yield the values in the graphs of nodes, step by step; ``run`` is call and execution."""
    index, execution = run
    for one in inner:
        name, node = one.inner.name or "", one.inner.producer()
        assert node is not None
        module, kind = (node.metadata_props.get(key, "") for key in (SCOPE, CLASS))
        actual = outputs[one.outer.name or ""]
        for place, pair in steps.get(origins[name], {}).items():
            computed, ideal = map(as_stored, pair)
            step = place[0] if one.stacked else None
            value = actual
            if step is not None:  # empty if the loop of the model ended earlier
                value = actual[step] if step < len(actual) else actual[:0]
            yield ValuePair(index, name, execution, module, kind, value, computed, ideal, step)


def _watched(model: ir.Model, known: Mapping[str, Array]) -> tuple[ir.Model, dict[str, ir.Node]]:
    """Return a model with known values as further outputs, and the nodes that compute them."""
    copy = model.clone()
    present = set(copy.graph.outputs)
    watched = {}
    for node in copy.graph:
        for value in node.outputs:
            name = value.name or ""
            # ONNX does not allow two outputs of one name.
            if name in known and value not in present and fits(value, known[name]):
                value.type = ir.TensorType(ir.DataType.from_numpy(known[name].dtype))
                copy.graph.outputs.append(value)
                watched[name] = node
    return copy, watched
