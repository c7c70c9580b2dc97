"""The search for the wrong regions of a model, call after call."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx_ir as ir
import torch

from coreai_onnx.debugging.blaming.body_runs import TorchSide
from coreai_onnx.debugging.blaming.causes import LocatedNode, causes_of
from coreai_onnx.debugging.blaming.inner_search import WrongCall, wrong_call
from coreai_onnx.debugging.blaming.regions_run import run_all
from coreai_onnx.debugging.difference import Array, Difference, difference
from coreai_onnx.debugging.reference.control_flow import body_calls
from coreai_onnx.debugging.reference.regions import CutGraph, Region, cut
from coreai_onnx.debugging.reference.torch_values import (
    TorchValues,
    as_stored,
    leaves_of,
    own_values,
    results_of,
    widen,
)
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
        nodes: The wrong nodes.
        values: The values that are wrong although their inputs are right.
        difference: The worst of them against torch.
        call: Index of the first input set for which they are wrong.
        regions: The wrong regions.
        inside: The wrong nodes in the function that the wrong node calls, if it is its body, or
            in the branch or body of the wrong ``If``, ``Loop`` or ``Scan``.
        steps: The iterations of the loops around ``inside`` in which they are wrong first,
            outermost first.
    """

    kind: Kind
    nodes: tuple[LocatedNode, ...]
    values: tuple[str, ...]
    difference: Difference
    call: int = 0
    regions: tuple[Region, ...] = field(default=(), repr=False)
    inside: tuple[LocatedNode, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def judgment(self) -> Difference:
        """Deprecated: `difference`."""
        warnings.warn("judgment is deprecated: use difference", DeprecationWarning, stacklevel=2)
        return self.difference

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines that the wrong nodes come from, ``model.py:41``.

        Those of the nodes inside of a function or body, if they come from lines of their own.
        """
        for nodes in (self.inside, self.nodes):
            lines = tuple(dict.fromkeys(one.where.source for one in nodes if one.where.source))
            if lines:
                return lines
        return ()


@dataclass(frozen=True)
class RegionRun:
    """One call: the cut graph, torch's results and the worst differences by value name."""

    graph: CutGraph
    feeds: Mapping[str, Array]
    differences: Mapping[str, Difference]


class RegionSearch:
    """Compares the regions of a model with torch, call after call.

    Attributes:
        runs: The calls.
        findings: The findings so far.
        checked: Number of regions that were compared in each execution.
    """

    def __init__(
        self, model: ir.Model, record: ExportRecord, executions: Sequence[Mapping[str, Any]]
    ) -> None:
        """Match the values of a model with the results of the exported program.

        Args:
            model: The model.
            record: What it was converted from.
            executions: The settings of the sessions: of bodies, and perhaps of kernels.

        Raises:
            ComparisonError: If an input of the model is not in the record.
        """
        self._model, self._program, self._modules = model, record.program, record.calls
        self._executions = executions
        names = {value.name or "" for node in model.graph for value in node.outputs}
        names |= {value.name or "" for value in model.graph.inputs}
        self._origins = read_origins(model.metadata_props, names, dict(results_of(self._program)))
        self._inner = read_inner_origins(
            model.metadata_props, {v.name or "" for n in model.graph.all_nodes() for v in n.outputs}
        )
        self._states: dict[str, torch.Tensor] = {}
        self._code = read_code(model.metadata_props)
        self._checked: set[int] = set()
        self._reported: set[str] = set()
        self.runs: list[RegionRun] = []
        self.findings: list[Finding] = []
        self.checked = 0
        unknown = [v.name for v in model.graph.inputs if v.name not in self._origins]
        if unknown:
            raise ComparisonError(
                f"the record has no value for the input {unknown[0]!r} of the model\n"
                "  give the record of the conversion that made the model"
            )

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compare all regions on one input set.

        Only torch's own results and those of the regions are in memory at once; each result in
        float64 is dropped when its region is compared.
        """
        values = own_values(self._program, leaves_of(self._program, args, kwargs), self._states)
        self._states |= values.new_states
        feeds = {
            name: as_stored(values.results[of])
            for name, of in self._origins.items()
            if of in values.results
        }
        graph = cut(self._model, feeds)
        differences = self._differences(graph, feeds, values)
        regions = [r for r in graph.regions if self._origins[r.value] not in values.undetermined]
        self.checked = max(self.checked, len(regions))
        self._checked |= {node for region in regions for node in region.nodes}
        worst = {
            r.value: max((d[r.value] for d in differences), key=lambda d: d.badness)
            for r in regions
        }
        self.runs.append(RegionRun(graph, feeds, worst))
        # torch runs the program once more for these: only if a wrong node has a branch or body.
        calls = functools.cache(lambda: body_calls(self._program, values.inputs))
        torch_side = TorchSide(self._modules, self._inner, calls)
        count = len(self.findings)
        for kind, wrong in _by_kind(regions, differences):
            self._add(kind, wrong, regions, differences, torch_side)
        if len(self.findings) == count:  # nothing to reproduce
            self.runs[-1] = RegionRun(graph, {}, worst)

    def _differences(
        self, graph: CutGraph, feeds: Mapping[str, Array], values: TorchValues
    ) -> list[dict[str, Difference]]:
        """Return the difference of each region in each execution."""
        computed = [run_all(graph, feeds, graph.regions, **how) for how in self._executions]
        differences: list[dict[str, Difference]] = [{} for _ in computed]
        by_origin: dict[str, list[str]] = {}
        for region in graph.regions:
            by_origin.setdefault(self._origins[region.value], []).append(region.value)

        def compare(origin: str, ideal: torch.Tensor) -> None:
            for name in by_origin.get(origin, ()):
                exact = as_stored(ideal)
                for results, of_execution in zip(computed, differences, strict=True):
                    # No result is kept after it has been compared.
                    result = results.pop(name)
                    of_execution[name] = (
                        Difference(1, 1, result)
                        if isinstance(result, str)
                        else difference(result, feeds[name], exact)
                    )

        widen(self._program.graph_module, values, set(self._origins.values()), compare)
        return differences

    def _add(
        self,
        kind: Kind,
        wrong: Sequence[Region],
        regions: Sequence[Region],
        by_execution: Sequence[Mapping[str, Difference]],
        torch_side: TorchSide,
    ) -> None:
        """Add the findings of one kind."""
        # The bodies run first and the kernels last, see `executions_on`.
        execution = -1 if kind == "kernel" else 0
        differences, settings = by_execution[execution], self._executions[execution]
        right = [region for region in regions if differences[region.value].ok]
        nodes = list(self._model.graph)
        run, call = self.runs[-1], len(self.runs) - 1
        for cause in causes_of(wrong, right):
            values = tuple(region.value for region in cause.regions)
            # A wrong region is wrong in every call, and is reported for the first one.
            if self._reported.issuperset(values):
                continue
            self._reported.update(values)
            worst = max((differences[value] for value in values), key=lambda d: d.badness)
            inner = wrong_call(
                run.graph, cause.nodes, run.feeds, torch_side, settings
            ) or WrongCall(-1, ())
            positions = (inner.position,) if inner.nodes else cause.nodes
            located = tuple(LocatedNode.of(nodes[index], self._code) for index in positions)
            inside = tuple(LocatedNode.of(node, self._code) for node in inner.nodes)
            real: Kind = "body" if inner.in_function else kind
            self.findings.append(
                Finding(real, located, values, worst, call, cause.regions, inside, inner.steps)
            )

    def unchecked(self) -> tuple[LocatedNode, ...]:
        """Return the nodes that are in no region that was compared."""
        nodes = enumerate(self._model.graph)
        return tuple(LocatedNode.of(n, self._code) for i, n in nodes if i not in self._checked)


def _by_kind(
    regions: Sequence[Region], differences: Sequence[Mapping[str, Difference]]
) -> Iterator[tuple[Kind, list[Region]]]:
    """Yield the wrong regions by what is wrong, from the runs of bodies and kernels."""
    # Without kernels both are the same, and whatever is wrong is attributed to the graph.
    bodies, kernels = differences[0], differences[-1]
    bad = [region for region in regions if not bodies[region.value].ok]
    yield "graph", [region for region in bad if not kernels[region.value].ok]
    yield "body", [region for region in bad if kernels[region.value].ok]
    yield "kernel", [r for r in regions if bodies[r.value].ok and not kernels[r.value].ok]
