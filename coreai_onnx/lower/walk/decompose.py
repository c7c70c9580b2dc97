"""Decomposes a single node: traces it from its fake inputs into ops that have lowerings.

torch's ``run_decompositions`` retraces the whole program, which most nodes do not need. Only a node
without a lowering is traced here, with the symbols of the program.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from coreai_onnx.composites.attention import position_mask
from coreai_onnx.composites.checks import compute_dtype
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
from coreai_onnx.lower.walk.registry import is_whole

aten = torch.ops.aten
_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 - an op


def flash_attention_for_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the op's schema
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention and the logsumexp of its scores.

    torch's decomposition returns the weights ``[batch, heads, queries, keys]`` as the second
    result. The op returns ``[batch, heads, queries]`` in float32 (float64 for float64), zero for a
    query that attends to no key.
    """
    output, _ = core_aten_decompositions()[_FLASH](
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )
    wide = compute_dtype(query.dtype)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    # Keys may have fewer heads than queries, each for a group of them.
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.to(wide) @ keys.to(wide).transpose(-2, -1) * factor
    if attn_mask is not None:
        scores = scores + attn_mask.to(wide)
    if is_causal:
        mask = position_mask(query.shape[2], key.shape[2], 1, 0, "upper_left")
        assert mask is not None
        scores = scores.masked_fill(~mask, float("-inf"))
    sums = torch.logsumexp(scores, -1)
    return output, sums.masked_fill(sums == float("-inf"), 0.0)


CORRECTED: dict[Any, Callable[..., Any]] = {_FLASH: flash_attention_for_cpu}
"""Decompositions by op."""


def get_decomp_table() -> dict[Any, Callable[..., Any]]:
    """Return a fresh decomposition table for ``ExportedProgram.run_decompositions``.

    It is torch's default table without the ops that have a better lowering.
    """
    table = torch.export.default_decompositions().items()
    return {op: rule for op, rule in table if not is_whole(str(op))}


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
    with torch.no_grad(), mode or contextlib.nullcontext(), size_oblivious():
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
