"""The bodies of If, Loop and Scan: which are converted to 16 bits, and whose dtypes are equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import onnx_ir as ir

from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.model.standard.model_protos import subgraphs
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS

_FIRST_INPUT = {"Loop": 2, "Scan": 0}
"""The first input of a node, and of its body, that is carried; the count and condition precede."""
_FIRST_OUTPUT = {"Loop": 1, "Scan": 0}
"""The first output of a body that is carried; the condition precedes."""


def matching(node: ir.Node, keep: Sequence[str]) -> list[str]:
    """Return the patterns that match a node's module path, name or op type."""
    names = (node.metadata_props.get(SCOPE, ""), node.name or "", node.op_type)
    return [p for p in keep if any(name and fnmatchcase(name, p) for name in names)]


def is_control_flow(node: ir.Node) -> bool:
    """Return whether a node is an If, a Loop or a Scan."""
    return node.domain in ONNX_DOMAINS and node.op_type in ("If", "Loop", "Scan")


def bodies(root: ir.Graph | ir.Function, keep: Sequence[str]) -> dict[ir.Graph, ir.Node]:
    """Return the bodies inside of a graph that are converted, outer ones first, and their nodes.

    The body of a node that a pattern selects keeps float32.

    Args:
        root: The graph.
        keep: The patterns.
    """
    holders: dict[ir.Graph, ir.Node] = {}
    waiting: list[ir.Graph | ir.Function] = [root]
    # The list grows while the loop reads it: bodies hold further bodies.
    for graph in waiting:
        for node in graph:
            if is_control_flow(node) and not matching(node, keep):
                inner = list(subgraphs(node))
                holders |= dict.fromkeys(inner, node)
                waiting += inner
    return holders


def receivers(node: ir.Node) -> list[ir.Value | None]:
    """Return for each input of an If, a Loop or a Scan the input of its body with that value."""
    # Branches have no inputs: they read values of the outer graph.
    if node.op_type == "If":
        return [None] * len(node.inputs)
    (body,) = subgraphs(node)
    first = _FIRST_INPUT[node.op_type]
    # A trip count and a condition are not floats, and have no dtype to decide.
    before: list[ir.Value | None] = [None] * min(first, len(node.inputs))
    return before + list(body.inputs[first : len(node.inputs)])


def results(node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
    """Yield the outputs of an If, a Loop or a Scan with the position in the outputs of a body."""
    yield from enumerate(node.outputs, _FIRST_OUTPUT.get(node.op_type, 0))


def equal_dtypes(node: ir.Node) -> Iterator[list[ir.Value]]:
    """Yield the values of an If, a Loop or a Scan, and of its bodies, that have one dtype."""
    graphs, op = list(subgraphs(node)), node.op_type
    first = _FIRST_INPUT.get(op, 0)
    carried = len(node.inputs) - first - node.attributes.get_int("num_scan_inputs", 0)
    for index, (position, value) in enumerate(results(node)):
        # ONNX gives a result one dtype in all branches, and a carried state one in all steps.
        group = [value, *(graph.outputs[position] for graph in graphs)]
        if op != "If" and index < carried:
            group.append(graphs[0].inputs[first + index])
        yield group
