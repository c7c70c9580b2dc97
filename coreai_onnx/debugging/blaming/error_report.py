"""The errors of a model on its nodes and on the lines of Python that they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import onnx_ir as ir

from coreai_onnx.debugging.blaming.search import Finding
from coreai_onnx.debugging.difference import STATEMENT, Difference
from coreai_onnx.debugging.reference.compared_row import Row, cells
from coreai_onnx.model.pages.graph_page import Column, Key, write_page
from coreai_onnx.model.provenance.places import Place, as_read, places_by_value


def line_errors(model: ir.Model, differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """Return the worst of the differences of values for each line, ``model.py:41``."""
    places = places_by_value(as_read(model))
    lines: dict[str, Difference] = {}
    for value, one in differences.items():
        line = places[value].where.source if value in places else ""
        if line and (line not in lines or one.badness > lines[line].badness):
            lines[line] = one
    return lines


def write_blame_page(
    path: str | PathLike[str],
    model: ir.Model,
    findings: Sequence[Finding],
    differences: Mapping[str, Difference],
    *,
    title: str,
    headline: str,
) -> Path:
    """Write a page of findings on the graph, colored by error; see `Blame.to_html`."""
    seen = as_read(model)
    places = places_by_value(seen)
    by_node = {places[v].key: one for v, one in differences.items() if v in places}
    columns = [
        Column("error", {key: one.error for key, one in by_node.items()}, "error"),
        Column("torch's error", {key: one.torch_error for key, one in by_node.items()}, "error"),
    ]
    exported = [f"export: {x.values[0]}: {x.difference}" for x in findings if not x.nodes]
    facts = [headline, STATEMENT, *exported]
    wrong = _reasons(findings, seen.places)
    return write_page(path, model, columns, title=title, facts=facts, wrong=wrong)


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
    headline = f"{count} of {len(outputs)} outputs differ" if count else "the outputs agree"
    return write_page(path, model, columns, title=title, facts=[headline, *notes], wrong=wrong)


def _error(row: Row) -> float:
    """Return the error of a result: by float64 if it is known, else the largest relative one."""
    return row.difference.max_rel if row.difference.by_tolerance else row.difference.error


def _reasons(findings: Sequence[Finding], places: Sequence[Place]) -> dict[Key, str]:
    """Return why the nodes of the findings are wrong, also those in a module that a node calls."""
    names = {place.node for place in places}
    reasons: dict[str, str] = {}
    for finding in findings:
        for node in finding.nodes:
            # A place names a node of a module after the call and the node.
            inner = {f"{node.name}/{one.name}" for one in finding.inside} & names
            reason = f"{finding.kind}: {finding.difference}"
            reasons |= dict.fromkeys(inner or {node.name}, reason)
    callers = {place.key: place.node.partition("/")[0] for place in places}
    return {
        place.key: reasons.get(place.node) or reasons[callers[place.key]]
        for place in places
        if place.node in reasons or callers[place.key] in reasons
    }
