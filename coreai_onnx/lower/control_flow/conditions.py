"""Lowers ``torch.cond`` to If, and ``while_loop`` to Loop."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from torch import fx

from coreai_onnx.lower.control_flow.nested import (
    MADE_INSIDE,
    NestedGraph,
    append,
    as_value,
    examples_of,
    predicate,
    results_of,
    walk_graph,
)
from coreai_onnx.lower.nodes.values import ir_dtype, real_part
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


@lowers_higher_order("while_loop")
def while_loop(walker: Walker, node: fx.Node) -> Any:
    """Lower ``while_loop(cond_fn, body_fn, carried, additional)``: zero or more iterations.

    Loop needs the condition before the first iteration and after each one, so ``cond_fn`` is
    lowered twice: before the loop on the initial values, and in the body on the new ones.
    """
    arguments = resolve([*node.args, *node.kwargs.values()], walker.value_of)
    cond_graph, body_graph, carried, additional = arguments
    (first,) = walk_graph(walker, walker.op, cond_graph, [*carried, *additional])
    placeholders = [n for n in body_graph.graph.nodes if n.op == "placeholder"][: len(carried)]
    examples = [p.meta["val"] for p in placeholders]
    initial = [_initial(walker, x, e) for x, e in zip(carried, examples, strict=True)]

    body = NestedGraph(walker, "body")
    body.add_input("iteration", ir.DataType.INT64, ())
    body.add_input("condition", ir.DataType.BOOL, ())
    results = body.walk(body_graph, [*[MADE_INSIDE] * len(carried), *additional])
    again = walk_graph(walker, body.op, cond_graph, [*results, *additional])[0]
    body.add_output(predicate(body.op, again), None)
    for result, example in zip(results, examples, strict=True):
        body.add_output(result, example)

    # Without a trip count, only the condition ends the loop.
    inputs = [None, predicate(walker.op, first), *initial]
    outputs = append(walker.op, "Loop", inputs, body.graph.outputs[1:], body=body.graph)
    return results_of(walker, node, outputs)


def _initial(walker: Walker, x: Any, example: Any) -> ir.Value:
    """Return an initial value, in the dtype that is carried."""
    value = as_value(walker.op, x, example)
    if hasattr(example, "dtype"):
        value = walker.op.cast(value, ir_dtype(real_part(example.dtype)))
    return value
