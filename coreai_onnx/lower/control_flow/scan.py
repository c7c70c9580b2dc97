"""Lowers ``scan``, ``map`` and ``associative_scan`` to Scan.

Torch has moved the scanned axis to the front, and converted a reversed scan to a forward scan
between flips. Neither torch nor onnxruntime's Scan supports a scan of length 0.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from torch import fx

from coreai_onnx.lower.control_flow.nested import (
    MADE_INSIDE,
    NestedGraph,
    append,
    examples_of,
    results_of,
)
from coreai_onnx.lower.nodes.values import Value, complex_like, ir_dtype_of
from coreai_onnx.lower.walk.binding import resolve
from coreai_onnx.lower.walk.registry import lowers_higher_order
from coreai_onnx.lower.walk.walker import Walker


@lowers_higher_order("scan")
def scan(walker: Walker, node: fx.Node) -> Any:
    """Lower ``scan(combine_fn, init, xs, additional)``: carries first, then stacked outputs."""
    combine, init, xs, additional = resolve(node.args, walker.value_of)
    return _scan(walker, node, combine, (init, xs, additional))


@lowers_higher_order("map_impl")
def map_(walker: Walker, node: fx.Node) -> Any:
    """Lower ``map_impl(f, xs, additional)``: a scan that carries nothing."""
    function, xs, additional = resolve(node.args, walker.value_of)
    return _scan(walker, node, function, ([], xs, additional))


def _scan(
    walker: Walker, node: fx.Node, combine: fx.GraphModule, operands: tuple[Any, Any, Any]
) -> Any:
    """Append a Scan; other values that the function reads are captured from outside."""
    init, xs, additional = operands
    placeholders = [n for n in combine.graph.nodes if n.op == "placeholder"]
    carried = [p.meta["val"] for p in placeholders[: len(init)]]
    body = NestedGraph(walker, "body")
    inside = [MADE_INSIDE] * (len(init) + len(xs))
    results = body.walk(combine, [*inside, *additional])
    examples = [*carried, *examples_of(node)[len(init) :]]
    for result, example in zip(results, examples, strict=True):
        body.add_output(result, example)
    # Scan requires the dtype of a carried value to be the same outside and inside.
    first = [
        walker.op.cast(x, ir_dtype_of(v)) for x, v in zip(init, body.graph.inputs, strict=False)
    ]
    outputs = append(
        walker.op,
        "Scan",
        [*first, *xs],
        body.graph.outputs,
        body=body.graph,
        num_scan_inputs=len(xs),
    )
    return results_of(walker, node, outputs)


@lowers_higher_order("associative_scan")
def associative_scan(walker: Walker, node: fx.Node) -> Any:
    """Lower ``associative_scan(combine_fn, xs, additional)``: yᵢ = combine(yᵢ₋₁, xᵢ), y₀ = x₀.

    The first iteration has no previous result: a carried flag selects x₀ there.
    """
    arguments = resolve([*node.args, *node.kwargs.values()], walker.value_of)
    combine, xs, additional = arguments if len(arguments) > 2 else (*arguments, [])
    op = walker.op
    placeholders = [n for n in combine.graph.nodes if n.op == "placeholder"]
    body = NestedGraph(walker, "body")
    is_first = body.add_input("is_first", ir.DataType.BOOL, ())
    count = len(xs)
    results = body.walk(combine, [*[MADE_INSIDE] * (2 * count), *additional])
    body.add_output(body.op.const(value=False), None)
    current = body.graph.inputs[1 + count :]
    examples = [p.meta["val"] for p in placeholders[:count]]
    chosen = [_choose(body, is_first, x, r) for x, r in zip(current, results, strict=True)]
    # Once as what the next iteration carries, and once as what is stacked.
    for y, example in zip(chosen * 2, examples * 2, strict=True):
        body.add_output(y, example)
    # The flag hides these values; they only need the right shape and dtype.
    start = [_first_slice(walker, x) for x in xs]
    outputs = append(
        op,
        "Scan",
        [op.const(value=True), *start, *xs],
        body.graph.outputs,
        body=body.graph,
        num_scan_inputs=count,
    )
    return results_of(walker, node, outputs[1 + count :])


def _choose(body: NestedGraph, is_first: Value, x: Value, combined: Any) -> Value:
    """Return x in the first iteration, otherwise the combined value."""
    return complex_like(body.op.Where(is_first, x, body.op.cast(combined, ir_dtype_of(x))), x)


def _first_slice(walker: Walker, x: Value) -> Value:
    """Return x[0]."""
    return walker.op.Gather(x, walker.op.const(0), axis=0)
