"""A model as an HTML page, and as node data for Model Explorer."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from coreai_onnx.model.files.saving import write_text
from coreai_onnx.model.interface import value_type_text
from coreai_onnx.model.pages.frame import framed
from coreai_onnx.model.provenance.places import Marked, as_read

Key = tuple[int, str]
"""A node of the file: ``Place.key``."""
_SCRIPTS = ("page_data.js", "page_lists.js", "page_graph.js", "page.js")
_LONGEST = 500
"""Characters of a text that the page shows."""


@dataclass(frozen=True)
class Column:
    """A number of each node.

    Attributes:
        name: Title.
        values: The number by node; nodes without one are absent.
        unit: ``ms`` and ``count`` are added up in a module, of ``error`` the largest is shown.
    """

    name: str
    values: Mapping[Key, float]
    unit: Literal["ms", "count", "error"] = "count"


def write_page(
    path: str | PathLike[str],
    model: ir.Model,
    columns: Sequence[Column],
    *,
    title: str,
    facts: Sequence[str] = (),
    wrong: Mapping[Key, str] | None = None,
) -> Path:
    """Write the page; see `graph_page`.

    Raises:
        SaveError: If it cannot be written.
    """
    target = Path(path)
    write_text(target, graph_page(model, columns, title=title, facts=facts, wrong=wrong))
    return target


def graph_page(
    model: ir.Model,
    columns: Sequence[Column],
    *,
    title: str,
    facts: Sequence[str] = (),
    wrong: Mapping[Key, str] | None = None,
) -> str:
    """Return a page of the nodes of a model.

    Args:
        model: The model; its metadata gives modules and source lines.
        columns: The numbers; the page is colored by one of them, at first the first.
        title: Title.
        facts: Sentences under the title.
        wrong: Nodes that are marked, with the reason.
    """
    seen = as_read(model)
    data = _Data(seen, columns, wrong or {}).as_json() | {"title": title, "facts": list(facts)}
    embedded = f'<script type="application/json" id="data">{_embedded(data)}</script>'
    body = f'<div id="app"></div>{embedded}'
    return framed(title, body, styles=("page.css",), scripts=_SCRIPTS)


class _Data:
    """The nodes of a model by numbers, and the texts that they share once."""

    def __init__(self, seen: Marked, columns: Sequence[Column], wrong: Mapping[Key, str]) -> None:
        self._seen, self._columns, self._wrong = seen, columns, wrong
        self._modules: dict[Hashable, int] = {}
        self._lines: dict[Hashable, int] = {}
        self._ops: dict[Hashable, int] = {}

    def as_json(self) -> dict[str, Any]:
        graph = self._seen.model.graph
        nodes = [self._node(node) for node in graph.all_nodes()]
        columns = [{"name": column.name, "unit": column.unit} for column in self._columns]
        values = [
            [_number(column.values.get(self._seen.places[row["at"]].key)) for row in nodes]
            for column in self._columns
        ]
        return {
            "modules": [*self._modules], "lines": [*self._lines], "ops": [*self._ops],
            "nodes": nodes, "columns": columns, "values": values,
            "inputs": [_described(value) for value in graph.inputs],
            "outputs": [_described(value) for value in graph.outputs],
        }  # fmt: skip

    def _node(self, node: ir.Node) -> dict[str, Any]:
        number = self._seen.number(node.name or "")
        assert number is not None
        place = self._seen.places[number]
        where = place.where
        row = {
            "at": number,
            "name": _short(place.node),
            "op": _index(self._ops, _short(place.op)),
            "module": _index(self._modules, (_short(where.module), _short(where.module_class))),
            "line": _index(self._lines, (_short(where.source), _short(where.code))),
            "reads": self._reads(node),
            "gives": [_described(value) for value in node.outputs if value.name],
        }
        return row | ({"wrong": _short(self._wrong[place.key])} if place.key in self._wrong else {})

    def _reads(self, node: ir.Node) -> list[int]:
        producers = (value.producer() for value in node.inputs if value is not None)
        numbers = (self._seen.number(one.name or "") for one in producers if one is not None)
        return list(dict.fromkeys(number for number in numbers if number is not None))


def _index(table: dict[Hashable, int], entry: Hashable) -> int:
    return table.setdefault(entry, len(table))


def _described(value: ir.Value) -> list[str]:
    return [_short(value.name or ""), _short(value_type_text(value))]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _number(value: float | None) -> float | str | None:
    """Return a number that JSON has: infinities and NaN are texts."""
    if value is None:
        return None
    number = float(value)
    # A comparison with NaN is false as well.
    return number if abs(number) < float("inf") else str(number)


def _embedded(data: object) -> str:
    """Return JSON that no text in it can end: it has no ``<`` and no lone surrogate."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_GRADIENT = ({"stop": 0, "bgColor": "#fff4e6"}, {"stop": 1, "bgColor": "#e8590c"})


def overlay(model: ir.Model, column: Column) -> dict[str, Any]:
    """Return the data of one number.

    Args:
        model: The model, as it is in the file.
        column: The number. Nodes without a name, which Model Explorer leaves out, are absent.
    """
    nodes = list(model.graph)
    values: dict[str, float] = {}
    for (position, _), value in column.values.items():
        name = nodes[position].name or ""
        if name and abs(value) < float("inf"):
            total = values.get(name)
            # The nodes of an externalized module are one node in the file: the call.
            values[name] = value if total is None else _joined(total, value, column)
    results = {name: {"value": value} for name, value in values.items()}
    graph = model.graph.name or ""
    return {graph: {"name": column.name, "results": results, "gradient": list(_GRADIENT)}}


def write_overlay(path: str | PathLike[str], model: ir.Model, column: Column) -> Path:
    """Write the data of one number as JSON; see `overlay`.

    Raises:
        SaveError: If it cannot be written.
    """
    target = Path(path)
    write_text(target, json.dumps(overlay(model, column), allow_nan=False, indent=1) + "\n")
    return target


def _joined(total: float, value: float, column: Column) -> float:
    return max(total, value) if column.unit == "error" else total + value
