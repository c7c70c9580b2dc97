"""Lowers ``torch.cond`` to If."""

from __future__ import annotations

from typing import Any

from torch import fx

from coreai_onnx.lower.control_flow.nested import (
    NestedGraph,
    append,
    examples_of,
    predicate,
    results_of,
    walk_graph,
)
from coreai_onnx.lower.walk.binding import resolve
from coreai_onnx.lower.walk.registry import lowers_higher_order
from coreai_onnx.lower.walk.walker import Walker


@lowers_higher_order("cond")
def cond(walker: Walker, node: fx.Node) -> Any:
    """Lower ``cond(pred, true_fn, false_fn, operands)``: branches capture outer values.

    If the predicate is known at conversion, only the branch that is taken is lowered.
    """
    pred, true_graph, false_graph, operands = resolve(node.args, walker.value_of)
    if isinstance(pred, bool):
        return walk_graph(walker, walker.op, true_graph if pred else false_graph, operands)
    condition = predicate(walker.op, pred)
    branches = []
    for name, submodule in (("then_branch", true_graph), ("else_branch", false_graph)):
        branch = NestedGraph(walker, name)
        results = branch.walk(submodule, operands)
        for result, example in zip(results, examples_of(node), strict=True):
            branch.add_output(result, example)
        branches.append(branch.graph)
    then_graph, else_graph = branches
    # If has at least one output in ONNX; without results, the branches can only contain checks.
    if not then_graph.outputs:
        return []
    outputs = append(
        walker.op,
        "If",
        [condition],
        then_graph.outputs,
        then_branch=then_graph,
        else_branch=else_graph,
    )
    return results_of(walker, node, outputs)
