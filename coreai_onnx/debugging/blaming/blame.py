"""Where a model differs from torch: the wrong nodes, and the user's lines that they come from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import onnx_ir as ir
import torch
from torch.export import ExportedProgram

from coreai_onnx.debugging.blaming.causes import LocatedNode
from coreai_onnx.debugging.blaming.error_report import write_blame_page
from coreai_onnx.debugging.blaming.regions_run import write_reproduction
from coreai_onnx.debugging.blaming.search import Finding, RegionRun, RegionSearch
from coreai_onnx.debugging.difference import STATEMENT, Difference, difference
from coreai_onnx.debugging.reference.references import (
    Call,
    TorchReference,
    calls_of_record,
    record_of,
)
from coreai_onnx.debugging.reference.torch_side import InputSet
from coreai_onnx.debugging.reference.torch_values import as_stored, leaves_of, torch_values
from coreai_onnx.errors import ComparisonError
from coreai_onnx.messages import render
from coreai_onnx.runtime.sessions.settings import executions_on
from coreai_onnx.runtime.sessions.sources import Source, model_of
from coreai_onnx.targets.providers import Choice, chosen_providers


@dataclass(frozen=True)
class Blame:
    """Where a model differs from torch; prints as a table.

    Attributes:
        findings: The causes in graph order.
        checked: Number of regions that were compared in each execution.
        unchecked: The nodes in no region that was compared, such as those that draw random numbers.
        kernels_checked: Whether the kernels were run.
        model: The model.
        provider: The execution provider that it ran on; None for the CPU.
    """

    findings: tuple[Finding, ...]
    checked: int
    unchecked: tuple[LocatedNode, ...]
    kernels_checked: bool
    model: ir.Model = field(repr=False)
    provider: Choice | None = None
    _runs: tuple[RegionRun, ...] = field(default=(), repr=False)

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

    @property
    def differences(self) -> dict[str, Difference]:
        """The worst difference of each value, by its name, over all calls and executions."""
        worst: dict[str, Difference] = {}
        for run in self._runs:
            for value, one in run.differences.items():
                worst[value] = max(worst.get(value, one), one, key=lambda d: d.badness)
        return worst

    @property
    def judgments(self) -> dict[str, Difference]:
        """Deprecated: `differences`."""
        warnings.warn("judgments is deprecated: use differences", DeprecationWarning, stacklevel=2)
        return self.differences

    judgements = judgments

    def to_html(self, path: str | PathLike[str], title: str = "Blame") -> Path:
        """Write a page with the graph, colored by error, the findings marked.

        Raises:
            SaveError: If it cannot be written.
        """
        headline, *_ = str(self).split("\n")
        return write_blame_page(
            path, self.model, self.findings, self.differences, title=title, headline=headline
        )

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
        folders = []
        for index, finding in enumerate(self.findings):
            # A fault of the export is in no node of the model.
            if finding.regions:
                run = self._runs[finding.call]
                model, place = run.graph.alone(finding.regions), Path(folder) / str(index)
                folders.append(write_reproduction(place, model, run.feeds, self.provider))
        return tuple(folders)

    def __str__(self) -> str:
        """Return the table of findings, and what was not checked."""
        parts = [_headline(self), STATEMENT]
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


def blame(
    model: Source,
    reference: object = None,
    inputs: InputSet | list[InputSet] | None = None,
    *,
    kernels: bool | None = None,
    provider: Choice | None = None,
) -> Blame:
    """Find the nodes of a model that compute something else than torch.

    The model is cut at every value that torch knows. Each region between two cuts is run on torch's
    own values, and compared by torch's own error against float64, so that an error does not spread.

    Args:
        model: A file, a model or a program.
        reference: An `ExportRecord` or ``ExportedProgram`` that the model was converted from. A
            module is compared with the exported program as well; then ``model`` is a converted
            program. None uses the record of a converted program.
        inputs: As for `compare`; None for the example inputs of the export. The states of
            consecutive calls are carried.
        kernels: Whether the kernels are run as well; None if they are built and there is no
            provider other than the CPU.
        provider: The execution provider that the regions run on, as for `session`.

    Returns:
        The findings: print them, or call ``assert_clean()``.

    Raises:
        ComparisonError: If there is no record, or the exported program cannot be run on the inputs.
        LoadError: If the model cannot be read.
        KernelsNotBuiltError: If ``kernels=True`` and there is no kernel library.
        ProviderError: If the provider is not available.
    """
    read = model_of(model)
    record = record_of(model, reference)
    calls = calls_of_record(record, inputs)
    executions = executions_on(provider, kernels=kernels)
    search = RegionSearch(read, record, tuple(executions.values()))
    # Only the module can show that the exported program itself is wrong.
    is_module = isinstance(reference, torch.nn.Module)
    findings = _export_findings(reference, record.program, calls) if is_module else ()
    for args, kwargs in calls:
        search.call(args, kwargs)
    return Blame(
        (*findings, *search.findings),
        search.checked,
        search.unchecked(),
        "kernels" in executions,
        read,
        provider,
        tuple(search.runs),
    )


def _export_findings(
    module: object, program: ExportedProgram, calls: Sequence[Call]
) -> Iterator[Finding]:
    """Yield a finding for every output of every call that torch exported wrongly.

    The allowed error is that of the whole exported program against float64.
    """
    eager = TorchReference(module)
    states: dict[str, torch.Tensor] = {}
    for index, (args, kwargs) in enumerate(calls):
        expected = [x for x in eager.call(args, kwargs).outputs if isinstance(x, torch.Tensor)]
        values = torch_values(program, leaves_of(program, args, kwargs), (), states)
        states |= values.new_states
        for name, output in zip(values.outputs, expected, strict=False):
            exported, ideal = as_stored(values.results[name]), as_stored(values.ideal[name])
            compared = difference(as_stored(output), exported, ideal)
            if name not in values.undetermined and not compared.ok:
                yield Finding("export", (), (name,), compared, index)


def _headline(result: Blame) -> str:
    where = "".join(f" on {name}" for name in chosen_providers(result.provider))
    if result.clean:
        return f"nothing is wrong: {result.checked} regions compute what torch does{where}"
    count = len(result.findings)
    return f"{count} {'finding' if count == 1 else 'findings'} in {result.checked} regions{where}"


def _rows(finding: Finding) -> Iterator[Sequence[object]]:
    values = ", ".join(finding.values[:3]) + (" …" if len(finding.values) > 3 else "")
    if not finding.nodes:
        yield finding.kind, "", "", "", "", values, finding.difference
    for index, node in enumerate(finding.nodes):
        where = node.where
        module = f"{where.module} ({where.module_class})" if where.module_class else where.module
        last = (values, finding.difference) if index == 0 else ("", "")
        kind = finding.kind if index == 0 else ""
        inside = ", ".join(f"{one.op} {one.name}" for one in finding.inside[:3])
        inside += "".join(f" [{step}]" for step in finding.steps)
        name = f"{node.op} {node.name}" + (f" → {inside}" if inside else "")
        yield kind, name, module, where.source, where.code, *last
        for handle, line in node.handles:
            source, _, text = line.partition("   ")
            yield "", f"  debug handle {handle}", "", source, text, "", ""
