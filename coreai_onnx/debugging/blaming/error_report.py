"""The errors of a model on its nodes and on the lines of Python that they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Protocol

import onnx_ir as ir

from coreai_onnx.debugging.blaming.search import Finding
from coreai_onnx.debugging.reference.compared_row import Row, cells
from coreai_onnx.debugging.verdict.yardstick import STATEMENT, Judgment
from coreai_onnx.model.pages.graph_page import Column, Key, write_page
from coreai_onnx.model.provenance.places import Place, as_read, places_by_value


class Findings(Protocol):
    """What is known about the errors of a model: a `Blame`."""

    @property
    def model(self) -> ir.Model:
        """The model."""

    @property
    def findings(self) -> Sequence[Finding]:
        """The causes of wrong results."""

    @property
    def judgments(self) -> Mapping[str, Judgment]:
        """The worst judgment of each value."""


def line_errors(found: Findings) -> dict[str, Judgment]:
    """Return the worst judgment of the results of each line, ``model.py:41``."""
    places = places_by_value(as_read(found.model))
    lines: dict[str, Judgment] = {}
    for value, judgment in found.judgments.items():
        line = places[value].where.source if value in places else ""
        if line and (line not in lines or judgment.badness > lines[line].badness):
            lines[line] = judgment
    return lines


def write_blame_page(found: Findings, path: str | PathLike[str], title: str) -> Path:
    """Write a page of findings on the graph, colored by error; see `Blame.to_html`."""
    seen = as_read(found.model)
    places = places_by_value(seen)
    judged = {
        places[value].key: judgment
        for value, judgment in found.judgments.items()
        if value in places
    }
    columns = [
        Column("error", {key: one.error for key, one in judged.items()}, "error"),
        Column("torch's error", {key: one.own for key, one in judged.items()}, "error"),
    ]
    headline, *_ = str(found).split("\n")
    exported = [f"export: {x.values[0]}: {x.judgment}" for x in found.findings if not x.nodes]
    wrong = _guilty(found, seen.places)
    facts = [headline, STATEMENT, *exported]
    return write_page(path, found.model, columns, title=title, facts=facts, wrong=wrong)


def write_comparison_page(
    path: str | PathLike[str],
    model: ir.Model,
    outputs: Sequence[Row],
    values: Sequence[Row],
    *,
    title: str,
    notes: Sequence[str],
) -> Path:
    """Write a page of a comparison on the graph, colored by error; see ``Comparison.to_html``."""
    places = places_by_value(as_read(model))
    errors: dict[str, dict[Key, float]] = {}
    wrong: dict[Key, str] = {}
    for row in (*values, *outputs):
        place = places.get(row.output.removeprefix("state "))
        if place is None:
            continue
        column = errors.setdefault(f"{row.execution} error", {})
        # A node has several results, calls and steps: the worst of them colors it.
        column[place.key] = max(column.get(place.key, 0.0), _error(row))
        if not row.ok:
            wrong.setdefault(place.key, f"{row.execution}: {cells(row)[-1]}")
    columns = [Column(name, of_node, "error") for name, of_node in errors.items()]
    count = sum(not row.ok for row in outputs)
    verdict = f"{count} of {len(outputs)} outputs differ" if count else "the outputs agree"
    return write_page(path, model, columns, title=title, facts=[verdict, *notes], wrong=wrong)


def _error(row: Row) -> float:
    """Return the error of a result: by float64 if it is known, else the largest relative one."""
    return row.difference.max_rel if row.judgment is None else row.judgment.error


def _guilty(found: Findings, places: tuple[Place, ...]) -> Mapping[Key, str]:
    """Return the nodes of the findings, also those in a module that a guilty node calls."""
    known = {place.node for place in places}
    reasons: dict[str, str] = {}
    for finding in found.findings:
        for node in finding.nodes:
            # A place names a node of a module after the call and the node.
            inner = {f"{node.name}/{one.name}" for one in finding.inside} & known
            reason = f"{finding.kind}: {finding.judgment}"
            reasons |= dict.fromkeys(inner or {node.name}, reason)
    callers = {place.key: place.node.partition("/")[0] for place in places}
    return {
        place.key: reasons.get(place.node) or reasons[callers[place.key]]
        for place in places
        if place.node in reasons or callers[place.key] in reasons
    }
