"""Removes functions that nothing calls."""
# ruff: noqa: ARG001 - every pass has the signature of a pass

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.graphs import called_functions, context_of
from coreai_onnx.passes.engine.why import Why


def remove_unused_functions(graph: gs.Graph, why: Why) -> int:
    """Function that neither the main graph nor a used function calls → removed.

    functions {rms_norm, rope}, nodes {rms_norm}     becomes     functions {rms_norm}
    """
    if context_of(graph).kind != "main":
        return 0
    kept = called_functions(graph, graph.functions)
    count = len(graph.functions) - len(kept)
    graph.functions = kept
    return count
