"""Where a model differs from torch: the guilty nodes, and the user's lines that they come from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch
from torch.export import ExportedProgram

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.eager_export import export_faults
from coreai_onnx.debugging.references import model_of, record_of
from coreai_onnx.debugging.regions import COMPUTED, CutGraph, Region, cut
from coreai_onnx.debugging.reproduction import write_reproduction
from coreai_onnx.debugging.suspects import Suspect, groups
from coreai_onnx.debugging.torch_side import InputSet, arguments_of
from coreai_onnx.debugging.true_values import TrueValues, as_stored, results_of, true_values
from coreai_onnx.debugging.yardstick import STATEMENT, Judgement, judge
from coreai_onnx.errors import ComparisonError, SessionError, reason_of
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.model.source_lines import read_code
from coreai_onnx.model.value_origins import read_origins
from coreai_onnx.runtime.library import kernels_built
from coreai_onnx.runtime.session import Session, Source
from coreai_onnx.table import render

Kind = Literal["graph", "body", "kernel", "export"]
"""What is wrong: nodes, attributes or weights of the main graph; the body of a function, while the
kernel is right; a kernel, while the body is right; torch's export, against the eager module."""


@dataclass(frozen=True)
class Finding:
    """One cause of wrong results.

    Attributes:
        kind: What is wrong.
        nodes: The guilty nodes.
        values: The values that are wrong although their inputs are right.
        judgement: The worst of them against torch.
        call: Index of the first input set for which they are wrong.
        regions: The wrong regions.
    """

    kind: Kind
    nodes: tuple[Suspect, ...]
    values: tuple[str, ...]
    judgement: Judgement
    call: int = 0
    regions: tuple[Region, ...] = field(default=(), repr=False)

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines that the guilty nodes come from, ``model.py:41``."""
        return tuple(dict.fromkeys(node.where.source for node in self.nodes if node.where.source))


@dataclass(frozen=True)
class Blame:
    """Where a model differs from torch; prints as a table.

    Attributes:
        findings: The causes in graph order.
        checked: Number of regions that were judged in each execution.
        unchecked: The nodes that no judged region has, such as those that draw random numbers.
        kernels_checked: Whether the kernels were run.
    """

    findings: tuple[Finding, ...]
    checked: int
    unchecked: tuple[Suspect, ...]
    kernels_checked: bool
    _runs: tuple[_Judged, ...] = field(default=(), repr=False)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def assert_clean(self) -> None:
        """Raise an error unless `clean`.

        Raises:
            ComparisonError: If something is wrong; an ``AssertionError`` with the table.
        """
        if not self.clean:
            raise ComparisonError(str(self))

    def reproduce(self, folder: str | PathLike[str]) -> tuple[Path, ...]:
        """Write a folder for each finding: a model of its regions, their inputs, torch's outputs.

        The files have the names of ONNX's own test cases: ``model.onnx``,
        ``test_data_set_0/input_0.pb``, ``output_0.pb``; ``run.py`` runs them.

        Args:
            folder: Receives ``0``, ``1``, …; it is created.

        Returns:
            The folders.

        Raises:
            SaveError: If they cannot be written.
        """
        made = []
        for index, finding in enumerate(self.findings):
            if finding.regions:
                run = self._runs[finding.call]
                model = run.graph.alone(finding.regions)
                made.append(write_reproduction(Path(folder) / str(index), model, run.known))
        return tuple(made)

    def __str__(self) -> str:
        """Return the table of findings, and what was not checked."""
        parts = [_verdict(self), STATEMENT]
        if self.findings:
            header = ("wrong", "node", "module", "line", "code", "values", "")
            rows = [row for finding in self.findings for row in _rows(finding)]
            parts.insert(1, render(header, rows))
        if self.unchecked:
            rows = [(node.op, node.name, node.where) for node in self.unchecked]
            parts.append(render(("not checked", "node", "where"), rows))
        if not self.kernels_checked:
            parts.append("kernels: not run")
        return "\n".join(parts)


@dataclass(frozen=True)
class _Judged:
    """One call: the cut graph and torch's results by value name."""

    graph: CutGraph
    known: Mapping[str, Array]


def blame(
    model: Source,
    reference: object = None,
    inputs: InputSet | list[InputSet] | None = None,
    *,
    kernels: bool | None = None,
) -> Blame:
    """Find the nodes of a model that compute something else than torch.

    The model is cut at every value that torch knows. Each region between two cuts is run on torch's
    own values, and judged by torch's own error against float64, so that an error does not spread.

    Args:
        model: A file, a model or a program.
        reference: An `ExportRecord` or ``ExportedProgram`` that the model was converted from. A
            module is compared with the exported program as well; then ``model`` is a converted
            program. None uses the record of a converted program.
        inputs: As for `compare`; None for the example inputs of the export. The states of
            consecutive calls are carried.
        kernels: Whether the kernels are run as well; None if they are built.

    Returns:
        The findings: print them, or call ``assert_clean()``.

    Raises:
        ComparisonError: If there is no record, or the exported program cannot be run on the inputs.
        LoadError: If the model cannot be read.
        KernelsNotBuiltError: If ``kernels=True`` and there is no kernel library.
    """
    read = model_of(model)
    record = record_of(model, reference)
    calls = _calls(record, inputs)
    with_kernels = kernels_built() if kernels is None else kernels
    search = _Search(read, record.program, kernels=with_kernels)
    findings: list[Finding] = []
    if isinstance(reference, torch.nn.Module):
        faults = export_faults(reference, record.program, calls)
        findings += [Finding("export", (), (name,), fault, i) for i, name, fault in faults]
    for args, kwargs in calls:
        search.call(args, kwargs)
    return Blame(
        (*findings, *search.findings),
        search.checked,
        search.unchecked(),
        with_kernels,
        tuple(search.runs),
    )


class _Search:
    """Judges the regions of a model, call after call."""

    def __init__(self, model: ir.Model, program: ExportedProgram, *, kernels: bool) -> None:
        self._model, self._program = model, program
        self._executions = (False, True) if kernels else (False,)
        names = {value.name or "" for node in model.graph for value in node.outputs}
        names |= {value.name or "" for value in model.graph.inputs}
        self._results = dict(results_of(program))
        self._origins = read_origins(model.metadata_props, names, self._results)
        self._states: dict[str, torch.Tensor] = {}
        self._code = read_code(model.metadata_props)
        self._judged: set[int] = set()
        self._guilty: set[str] = set()
        self.runs: list[_Judged] = []
        self.findings: list[Finding] = []
        self.checked = 0
        unknown = [v.name for v in model.graph.inputs if v.name not in self._origins]
        if unknown:
            raise ComparisonError(
                f"the record does not know the input {unknown[0]!r} of the model\n"
                "  give the record of the conversion that made the model"
            )

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Judge all regions on one input set."""
        anchors = set(self._origins.values())
        truth = true_values(self._program, args, kwargs, anchors, self._states)
        self._states |= truth.new_states
        known = {
            name: as_stored(truth.own[of]) for name, of in self._origins.items() if of in truth.own
        }
        graph = cut(self._model, known)
        regions = [r for r in graph.regions if self._origins[r.value] not in truth.undetermined]
        self.runs.append(_Judged(graph, known))
        verdicts = [self._verdicts(graph, known, truth, regions, k) for k in self._executions]
        self.checked = max(self.checked, len(regions))
        self._judged |= {node for region in regions for node in region.nodes}
        for kind, wrong in _by_kind(regions, verdicts):
            self._add(kind, wrong, regions, verdicts[-1 if kind == "kernel" else 0])

    def _verdicts(
        self,
        graph: CutGraph,
        known: Mapping[str, Array],
        truth: TrueValues,
        regions: Sequence[Region],
        kernels: bool,  # noqa: FBT001 - an internal call with a positional list
    ) -> dict[str, Judgement]:
        computed = _computed(graph, known, regions, kernels=kernels)
        verdicts = {}
        for region in regions:
            result = computed[region.value]
            if isinstance(result, str):
                verdicts[region.value] = Judgement(float("nan"), 0.0, 1, 1, result)
                continue
            ideal = as_stored(truth.ideal[self._origins[region.value]])
            verdicts[region.value] = judge(result, known[region.value], ideal)
        return verdicts

    def _add(
        self,
        kind: Kind,
        wrong: Sequence[Region],
        regions: Sequence[Region],
        verdicts: Mapping[str, Judgement],
    ) -> None:
        right = [region for region in regions if verdicts[region.value].ok]
        nodes = list(self._model.graph)
        for group in groups(wrong, right):
            values = tuple(region.value for region in group.regions)
            if self._guilty.issuperset(values):
                continue
            self._guilty.update(values)
            suspects = tuple(Suspect.of(nodes[index], self._code) for index in group.nodes)
            worst = max((verdicts[value] for value in values), key=_badness)
            call = len(self.runs) - 1
            self.findings.append(Finding(kind, suspects, values, worst, call, group.regions))

    def unchecked(self) -> tuple[Suspect, ...]:
        """Return the nodes that no judged region has."""
        nodes = enumerate(self._model.graph)
        return tuple(Suspect.of(n, self._code) for i, n in nodes if i not in self._judged)


def _by_kind(
    regions: Sequence[Region], verdicts: Sequence[Mapping[str, Judgement]]
) -> Iterator[tuple[Kind, list[Region]]]:
    """Yield the wrong regions by what is wrong, as bodies and kernels tell."""
    bodies, kernels = verdicts[0], verdicts[-1]
    bad = [region for region in regions if not bodies[region.value].ok]
    yield "graph", [region for region in bad if not kernels[region.value].ok]
    yield "body", [region for region in bad if kernels[region.value].ok]
    fast = [r for r in regions if bodies[r.value].ok and not kernels[r.value].ok]
    yield "kernel", fast


def _computed(
    graph: CutGraph, known: Mapping[str, Array], regions: Sequence[Region], *, kernels: bool
) -> dict[str, Array | str]:
    """Return the result of each region, or why it cannot be run."""
    try:
        return dict(_run(graph.model, known, kernels=kernels))
    except SessionError:  # one region is broken: find out which
        results: dict[str, Array | str] = {}
        for region in regions:
            try:
                results |= _run(graph.alone([region]), known, kernels=kernels)
            except SessionError as error:
                results[region.value] = f"onnxruntime cannot run it: {reason_of(error)}"
        return results


def _run(model: ir.Model, known: Mapping[str, Array], *, kernels: bool) -> dict[str, Array]:
    session = Session(model, kernels=kernels)
    outputs = session.run(**{info.name: known[info.name] for info in session.inputs})
    names = (info.name for info in session.outputs)
    return {name.removesuffix(COMPUTED): outputs[name] for name in names}


def _calls(
    record: ExportRecord, inputs: InputSet | list[InputSet] | None
) -> list[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    if inputs is not None:
        sets: Collection[InputSet] = inputs if isinstance(inputs, list) else [inputs]
        return [arguments_of(one) for one in sets]
    if record.example is None:
        raise ComparisonError("the record has no example inputs: give inputs=")
    return [record.example]


def _badness(judgement: Judgement) -> tuple[bool, float]:
    return bool(judgement.problem), judgement.error


def _verdict(result: Blame) -> str:
    if result.clean:
        return f"nothing is wrong: {result.checked} regions compute what torch does"
    count = len(result.findings)
    return f"{count} {'finding' if count == 1 else 'findings'} in {result.checked} regions"


def _rows(finding: Finding) -> Iterator[Sequence[object]]:
    values = ", ".join(finding.values[:3]) + (" …" if len(finding.values) > 3 else "")
    if not finding.nodes:
        yield finding.kind, "", "", "", "", values, finding.judgement
    for index, node in enumerate(finding.nodes):
        where = node.where
        module = f"{where.module} ({where.module_class})" if where.module_class else where.module
        last = (values, finding.judgement) if index == 0 else ("", "")
        kind = finding.kind if index == 0 else ""
        yield kind, f"{node.op} {node.name}", module, where.source, where.code, *last
