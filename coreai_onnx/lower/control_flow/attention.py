"""Lowers ``flex_attention`` to the scores of all pairs, modified and masked by torch's rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from coreai_onnx.export.compat.torch_names import math_attention, pytree
from coreai_onnx.lower.control_flow.nested import walk_graph
from coreai_onnx.lower.walk.binding import resolve
from coreai_onnx.lower.walk.decompose import trace
from coreai_onnx.lower.walk.registry import lowers_higher_order
from coreai_onnx.lower.walk.walker import Walker


@lowers_higher_order("flex_attention")
def flex_attention(walker: Walker, node: fx.Node) -> Any:
    """Lower ``flex_attention(query, key, value, score_mod, block_mask, scale, ...)``.

    Formula: ``math_attention`` of ``torch._higher_order_ops.flex_attention``, which maps
    ``score_mod`` and ``mask_mod`` over batch, head and both positions; it is traced here.
    """
    leaves, spec = pytree.tree_flatten((node.args, dict(node.kwargs)))
    graphs = {n: walker.submodule(n) for n in leaves if _is_graph(walker, n)}
    nodes = [n for n in leaves if isinstance(n, fx.Node) and n not in graphs]

    def call(*values: Any) -> Any:
        arguments = dict(zip(nodes, values, strict=True))
        filled = [
            graphs.get(x, arguments.get(x, x)) if isinstance(x, fx.Node) else x for x in leaves
        ]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return math_attention(*args, **kwargs)

    # The maps are vmaps of Python functions, which only a trace turns into ops.
    traced = trace(call, [n.meta["val"] for n in nodes])
    return walk_graph(walker, walker.op, traced, resolve(nodes, walker.value_of))


def _is_graph(walker: Walker, x: Any) -> bool:
    return isinstance(x, fx.Node) and isinstance(walker.value_of(x), torch.nn.Module)
