"""Decomposes a single node: traces it from its fake inputs into ops that have lowerings.

torch's ``run_decompositions`` retraces the whole program, which most nodes do not need. Only a node
without a lowering is traced here, with the symbols of the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from coreai_onnx.export.compat.torch_names import (
    FakeTensor,
    OpOverload,
    all_decompositions,
    core_aten_decompositions,
    make_fx,
    pytree,
)
from coreai_onnx.export.functionalize.in_place import mutates, without_in_place_inside
from coreai_onnx.export.torch_export import size_oblivious
from coreai_onnx.lower.walk.corrected_decompositions import CORRECTED


@functools.cache
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """Return the corrected decompositions, then torch's for export, then all its others."""
    table: dict[Any, Callable[..., Any]] = dict(all_decompositions)
    table.update(core_aten_decompositions().items())
    table.update(CORRECTED)
    return table


def decompose(node: fx.Node) -> fx.GraphModule | None:
    """Trace the decomposition of a node's op on the node's fake inputs.

    Returns:
        A graph whose placeholders represent the tensors and symbolic numbers among the node's
        arguments, in flattened order; None if torch has no decomposition for the op.
    """
    target = node.target
    if not isinstance(target, OpOverload):
        return None
    rule = _rule(target)
    if rule is None:
        return None
    leaves, spec = pytree.tree_flatten((node.args, dict(node.kwargs)))
    inputs = [leaf.meta["val"] for leaf in leaves if isinstance(leaf, fx.Node)]
    results = pytree.tree_leaves(node.meta.get("val"))

    def call(*values: Any) -> Any:
        remaining = iter(values)
        filled = [next(remaining) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        result = rule(*args, **kwargs)
        # make_fx would take NotImplemented for the result of the graph.
        if result is NotImplemented:
            raise NotImplementedError(str(target))
        return result

    try:
        graph_module = trace(call, inputs, like=results)
    except NotImplementedError:
        return None
    # A rule that calls its own op would be inlined without end.
    if any(n.target is target for n in graph_module.graph.nodes):
        return None
    return graph_module


def trace(
    function: Callable[..., Any], examples: Sequence[Any], like: Sequence[Any] = ()
) -> fx.GraphModule:
    """Trace a function on fake tensors and symbolic numbers, one placeholder each.

    The graph is functional: in-place changes become new values. New guards on sizes are errors,
    since the export is complete and a guard would specialize the program to the example's size.

    Args:
        function: The function to trace.
        examples: Its arguments.
        like: Results, which provide the fake mode if no argument is a tensor.
    """
    fakes = (e for e in (*examples, *like) if isinstance(e, FakeTensor))
    # torch refuses to mix fake tensors of two modes, so the mode of the program is entered.
    mode = next((f.fake_mode for f in fakes), None)
    with torch.no_grad(), _entered(mode), size_oblivious():
        traced = make_fx(function, _allow_non_fake_inputs=True)(*examples)
        if not any(map(mutates, traced.graph.nodes)):
            return traced
        # torch.func.functionalize needs a second trace; a rewrite of this one is cheaper.
        plain = without_in_place_inside(traced)
        if plain is not None and not any(map(mutates, plain.graph.nodes)):
            return plain
        functional = torch.func.functionalize(function, remove="mutations")
        return make_fx(functional, _allow_non_fake_inputs=True)(*examples)


def _rule(target: OpOverload) -> Callable[..., Any] | None:
    """Return the function that decomposes an op."""
    table = decomposition_table()
    if target in table:
        return table[target]
    if target._can_decompose():
        return target.decompose
    return None


def _entered(mode: Any) -> Any:
    import contextlib

    return mode if mode is not None else contextlib.nullcontext()
