"""Numbers of nodes as data for Model Explorer, which colors the nodes of a file by them.

The format is that of Model Explorer's custom node data: by graph, the value of each node by its id.
Its adapter for ONNX uses the name of the graph, and the names of the nodes as ids.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

import onnx_ir as ir

from coreai_onnx.model.files.saving import write_text
from coreai_onnx.model.pages.graph_page import Column

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
            known = values.get(name)
            values[name] = value if known is None else _joined(known, value, column)
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


def _joined(known: float, value: float, column: Column) -> float:
    """Return the number of a call whose nodes have numbers."""
    return max(known, value) if column.unit == "error" else known + value
