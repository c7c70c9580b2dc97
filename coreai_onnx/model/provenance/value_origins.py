"""Which values of a model are results of which nodes of the exported program, in its metadata.

A result is named by its FX node, ``linear_3``, or by node and position, ``split:1``; one in a graph
that a node calls has the graph's path before it, ``while_loop_body_graph_0/mul``. Most values of
a model have the name of their FX node, so that the entry holds the others only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping

VALUES = "coreai.values"
"""Model metadata: value to the result of the exported program, ``{"output": "softmax"}``."""


def values_entry(origins: Mapping[str, str]) -> str:
    """Return the entry of the metadata; empty if every value has the name of its result.

    Args:
        origins: Value name to result.
    """
    counts = Counter(origins.values())
    kept = {name: of for name, of in origins.items() if name != of or counts[of] > 1}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else ""


def read_origins(
    metadata: Mapping[str, str], values: Collection[str], results: Collection[str]
) -> dict[str, str]:
    """Return the result that each value is; values without one are left out.

    Args:
        metadata: The metadata of the model. An entry that another tool changed is ignored.
        values: Names of the values in the model.
        results: Names of the results of the exported program.
    """
    entry = _entry(metadata)
    renamed = set(entry.values())
    found = {name: entry.get(name, "" if name in renamed else name) for name in values}
    return {name: of for name, of in found.items() if of in results}


def read_inner_origins(metadata: Mapping[str, str], values: Collection[str]) -> dict[str, str]:
    """Return the result that each value in the graphs of nodes is; others are left out.

    Args:
        metadata: As for `read_origins`.
        values: Names of the values in graphs of nodes.
    """
    return {name: of for name, of in _entry(metadata).items() if name in values and "/" in of}


def _entry(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the entry of the metadata; empty if another tool has changed it."""
    try:
        found = json.loads(metadata.get(VALUES) or "{}").items()
        return {str(name): str(of) for name, of in found}
    except (AttributeError, ValueError, RecursionError):
        return {}
