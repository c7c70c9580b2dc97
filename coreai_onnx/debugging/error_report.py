"""The errors of a model on its nodes and on the lines of Python that they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Protocol

import onnx_ir as ir

from coreai_onnx.debugging.search import Finding
from coreai_onnx.debugging.yardstick import STATEMENT, Judgement
from coreai_onnx.model.places import Place, as_read, places_by_value
from coreai_onnx.report.graph_page import Column, Key, write_page


class Findings(Protocol):
    """What is known about the errors of a model: a `Blame`."""

    @property
    def model(self) -> ir.Model:
        """The model."""

    @property
    def findings(self) -> Sequence[Finding]:
        """The causes of wrong results."""

    @property
    def judgements(self) -> Mapping[str, Judgement]:
        """The worst judgement of each value."""


def line_errors(found: Findings) -> dict[str, Judgement]:
    """Return the worst judgement of the results of each line, ``model.py:41``."""
    places = places_by_value(as_read(found.model))
    lines: dict[str, Judgement] = {}
    for value, judgement in found.judgements.items():
        line = places[value].where.source if value in places else ""
        if line and (line not in lines or judgement.badness > lines[line].badness):
            lines[line] = judgement
    return lines


def write_blame_page(found: Findings, path: str | PathLike[str], title: str) -> Path:
    """Write a page of findings on the graph, colored by error; see `Blame.to_html`."""
    seen = as_read(found.model)
    places = places_by_value(seen)
    judged = {
        places[value].key: judgement
        for value, judgement in found.judgements.items()
        if value in places
    }
    columns = [
        Column("error", {key: one.error for key, one in judged.items()}, "error"),
        Column("torch's error", {key: one.own for key, one in judged.items()}, "error"),
    ]
    headline, *_ = str(found).split("\n")
    exported = [f"export: {x.values[0]}: {x.judgement}" for x in found.findings if not x.nodes]
    wrong = _guilty(found, seen.places)
    facts = [headline, STATEMENT, *exported]
    return write_page(path, found.model, columns, title=title, facts=facts, wrong=wrong)


def _guilty(found: Findings, places: tuple[Place, ...]) -> Mapping[Key, str]:
    """Return the nodes of the findings, also those in a module that a guilty node calls."""
    reasons = {
        node.name: f"{finding.kind}: {finding.judgement}"
        for finding in found.findings
        for node in finding.nodes
    }
    callers = ((place.key, place.node.partition("/")[0]) for place in places)
    named = {place.key: place.node for place in places}
    return {
        key: reasons.get(named[key]) or reasons[caller]
        for key, caller in callers
        if named[key] in reasons or caller in reasons
    }
