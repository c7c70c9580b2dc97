"""The search for the wrong regions of a model, call after call."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx_ir as ir
import torch

from coreai_onnx.debugging.blaming.body_runs import TorchSide
from coreai_onnx.debugging.blaming.descent import GuiltyCall, guilty_call
from coreai_onnx.debugging.blaming.regions_run import run_all
from coreai_onnx.debugging.blaming.suspects import Suspect, groups
from coreai_onnx.debugging.reference.control_flow import body_calls
from coreai_onnx.debugging.reference.regions import CutGraph, Region, cut
from coreai_onnx.debugging.reference.true_values import (
    TrueValues,
    as_stored,
    own_values,
    results_of,
    widen,
)
from coreai_onnx.debugging.verdict.difference import Array
from coreai_onnx.debugging.verdict.yardstick import Judgment, judge
from coreai_onnx.errors import ComparisonError
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.model.provenance.source_lines import read_code, read_inner_origins, read_origins

Kind = Literal["graph", "body", "kernel", "export"]
"""What is wrong: nodes, attributes or weights of the main graph; the body of a function, where the
kernel is right or the body is not what the converter writes; a kernel, where the body is right;
torch's export, against the eager module."""


@dataclass(frozen=True)
class Finding:
    """One cause of wrong results.

    Attributes:
        kind: What is wrong.
        nodes: The guilty nodes.
        values: The values that are wrong although their inputs are right.
        judgment: The worst of them against torch.
        call: Index of the first input set for which they are wrong.
        regions: The wrong regions.
        inside: The guilty nodes in the function that the guilty node calls, if it is its body, or
            in the branch or body of the guilty ``If``, ``Loop`` or ``Scan``.
        steps: The iterations of the loops around ``inside`` in which they are wrong first,
            outermost first.
    """

    kind: Kind
    nodes: tuple[Suspect, ...]
    values: tuple[str, ...]
    judgment: Judgment
    call: int = 0
    regions: tuple[Region, ...] = field(default=(), repr=False)
    inside: tuple[Suspect, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines that the guilty nodes come from, ``model.py:41``.

        Those of the nodes inside of a function or body, if they come from lines of their own.
        """
        for nodes in (self.inside, self.nodes):
            found = tuple(dict.fromkeys(one.where.source for one in nodes if one.where.source))
            if found:
                return found
        return ()


@dataclass(frozen=True)
class Judged:
    """One call: the cut graph, torch's results and the worst judgments by value name."""

    graph: CutGraph
    known: Mapping[str, Array]
    judgments: Mapping[str, Judgment]


class RegionSearch:
    """Judges the regions of a model, call after call.

    Attributes:
        runs: The calls.
        findings: The findings so far.
        checked: Number of regions that were judged in each execution.
    """

    def __init__(self, model: ir.Model, record: ExportRecord, *, kernels: bool) -> None:
        """Match the values of a model with the results of the exported program.

        Args:
            model: The model.
            record: What it was converted from.
            kernels: Whether kernels are run, beside the function bodies.

        Raises:
            ComparisonError: If the record does not know an input of the model.
        """
        self._model, self._program, self._modules = model, record.program, record.calls
        self._executions = (False, True) if kernels else (False,)
        names = {value.name or "" for node in model.graph for value in node.outputs}
        names |= {value.name or "" for value in model.graph.inputs}
        self._results = dict(results_of(self._program))
        self._origins = read_origins(model.metadata_props, names, self._results)
        self._inner = read_inner_origins(
            model.metadata_props, {v.name or "" for n in model.graph.all_nodes() for v in n.outputs}
        )
        self._inputs: tuple[Any, ...] = ()
        self._states: dict[str, torch.Tensor] = {}
        self._code = read_code(model.metadata_props)
        self._judged: set[int] = set()
        self._guilty: set[str] = set()
        self.runs: list[Judged] = []
        self.findings: list[Finding] = []
        self.checked = 0
        unknown = [v.name for v in model.graph.inputs if v.name not in self._origins]
        if unknown:
            raise ComparisonError(
                f"the record does not know the input {unknown[0]!r} of the model\n"
                "  give the record of the conversion that made the model"
            )

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Judge all regions on one input set.

        Only torch's own results and those of the regions are in memory at once; each result in
        float64 is dropped when its region is judged.
        """
        truth = own_values(self._program, args, kwargs, self._states)
        self._states |= truth.new_states
        self._inputs = truth.inputs
        known = {
            name: as_stored(truth.own[of]) for name, of in self._origins.items() if of in truth.own
        }
        graph = cut(self._model, known)
        verdicts = self._verdicts(graph, known, truth)
        regions = [r for r in graph.regions if self._origins[r.value] not in truth.undetermined]
        self.checked = max(self.checked, len(regions))
        self._judged |= {node for region in regions for node in region.nodes}
        worst = {
            r.value: max((v[r.value] for v in verdicts), key=lambda j: j.badness) for r in regions
        }
        self.runs.append(Judged(graph, known, worst))
        count = len(self.findings)
        for kind, wrong in _by_kind(regions, verdicts):
            self._add(kind, wrong, regions, verdicts[-1 if kind == "kernel" else 0])
        if len(self.findings) == count:  # nothing to reproduce
            self.runs[-1] = Judged(graph, {}, worst)

    def _verdicts(
        self, graph: CutGraph, known: Mapping[str, Array], truth: TrueValues
    ) -> list[dict[str, Judgment]]:
        """Return the judgment of each region in each execution."""
        computed = [run_all(graph, known, graph.regions, kernels=k) for k in self._executions]
        verdicts: list[dict[str, Judgment]] = [{} for _ in computed]
        values: dict[str, list[str]] = {}
        for region in graph.regions:
            values.setdefault(self._origins[region.value], []).append(region.value)

        def each(name: str, ideal: torch.Tensor) -> None:
            for value in values.get(name, ()):
                right = as_stored(ideal)
                for results, made in zip(computed, verdicts, strict=True):
                    result = results.pop(value)
                    made[value] = (
                        Judgment(float("nan"), 0.0, 1, 1, result)
                        if isinstance(result, str)
                        else judge(result, known[value], right)
                    )

        widen(self._program, truth, set(self._origins.values()), each)
        return verdicts

    def _add(
        self,
        kind: Kind,
        wrong: Sequence[Region],
        regions: Sequence[Region],
        verdicts: Mapping[str, Judgment],
    ) -> None:
        right = [region for region in regions if verdicts[region.value].ok]
        inputs = self._inputs
        # torch runs the program once more for these: only if a suspect has a branch or body.
        calls = functools.cache(lambda: body_calls(self._program, inputs))
        torch_side = TorchSide(self._modules, self._inner, calls)
        nodes = list(self._model.graph)
        for group in groups(wrong, right):
            values = tuple(region.value for region in group.regions)
            # A wrong region is wrong in every call, and is reported for the first one.
            if self._guilty.issuperset(values):
                continue
            self._guilty.update(values)
            worst = max((verdicts[value] for value in values), key=lambda j: j.badness)
            run, call = self.runs[-1], len(self.runs) - 1
            found = guilty_call(
                run.graph, group.nodes, run.known, torch_side, kernels=kind == "kernel"
            ) or GuiltyCall(-1, ())
            guilty = (found.position,) if found.nodes else group.nodes
            suspects = tuple(Suspect.of(nodes[index], self._code) for index in guilty)
            inside = tuple(Suspect.of(node, self._code) for node in found.nodes)
            real: Kind = "body" if found.in_function else kind
            self.findings.append(
                Finding(real, suspects, values, worst, call, group.regions, inside, found.steps)
            )

    def unchecked(self) -> tuple[Suspect, ...]:
        """Return the nodes that are in no judged region."""
        nodes = enumerate(self._model.graph)
        return tuple(Suspect.of(n, self._code) for i, n in nodes if i not in self._judged)


def _by_kind(
    regions: Sequence[Region], verdicts: Sequence[Mapping[str, Judgment]]
) -> Iterator[tuple[Kind, list[Region]]]:
    """Yield the wrong regions by what is wrong, as judged by bodies and kernels."""
    # Without kernels both are the same, and whatever is wrong is attributed to the graph.
    bodies, kernels = verdicts[0], verdicts[-1]
    bad = [region for region in regions if not bodies[region.value].ok]
    yield "graph", [region for region in bad if not kernels[region.value].ok]
    yield "body", [region for region in bad if kernels[region.value].ok]
    fast = [r for r in regions if bodies[r.value].ok and not kernels[r.value].ok]
    yield "kernel", fast
