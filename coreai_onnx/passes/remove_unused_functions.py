"""Functions that nothing calls."""
# ruff: noqa: ARG001 - every pass has the signature of a pass

from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.scope import scope_of, with_subgraphs
from coreai_onnx.passes.why import Why


def remove_unused_functions(graph: gs.Graph, why: Why) -> int:
    """A function that neither the main graph nor a used function calls → gone.

    functions {rms_norm, rope}, nodes {rms_norm}     becomes     functions {rms_norm}
    """
    if scope_of(graph).kind != "main":
        return 0
    bodies = {(f.domain, f.name): f for f in graph.functions}
    used: set[tuple[str, str]] = set()
    waiting = [graph]
    while waiting:
        for inner in with_subgraphs(waiting.pop()):
            for node in inner.nodes:
                call = (node.domain or "", node.op)
                if call in bodies and call not in used:
                    used.add(call)
                    waiting.append(bodies[call])
    kept = [f for f in graph.functions if (f.domain, f.name) in used]
    count = len(graph.functions) - len(kept)
    graph.functions = kept
    return count
