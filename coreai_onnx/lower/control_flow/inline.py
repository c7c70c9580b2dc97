"""Inlines wrappers that do not change the results of their graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from coreai_onnx.export.compat.torch_names import REGION
from coreai_onnx.lower.control_flow.nested import walk_graph
from coreai_onnx.lower.walk.binding import resolve
from coreai_onnx.lower.walk.decompose import trace
from coreai_onnx.lower.walk.registry import lowers_higher_order
from coreai_onnx.lower.walk.walker import Walker

# The index of the graph among the arguments, and the index of the first operand, which may be a
# list of all operands.
INLINED: dict[str, tuple[int, int]] = {
    "wrap": (0, 1),
    "wrap_with_set_grad_enabled": (1, 2),
    "wrap_activation_checkpoint": (0, 1),
    "tag_activation_checkpoint": (0, 1),
    "dynamo_bypassing_wrapper": (1, 2),
    "invoke_subgraph": (0, 2),
    "local_map_hop": (0, 1),
    "strict_mode": (0, 1),
    "run_const_graph": (0, 1),
    "hints_wrapper": (0, 1),
}
_TAKE_A_LIST = ("strict_mode", "run_const_graph", "hints_wrapper")


@lowers_higher_order(*INLINED)
def inline(walker: Walker, node: fx.Node) -> Any:
    """Lower the wrapped graph at its call."""
    name = str(node.target)
    graph_at, operands_at = INLINED[name]
    arguments = resolve(node.args, walker.value_of)
    # What the user marked as a region of its own is a function.
    if node.target is REGION and walker.context.module_calls is not None:
        return _as_called(node, walker.context.module_calls(walker, node, arguments, {}))
    operands = arguments[operands_at] if name in _TAKE_A_LIST else arguments[operands_at:]
    return _as_called(node, walk_graph(walker, walker.op, arguments[graph_at], operands))


@lowers_higher_order("wrap_with_autocast")
def with_autocast(walker: Walker, node: fx.Node) -> Any:
    """wrap_with_autocast(device, dtype, enabled, cache, graph, *operands).

    The graph is traced again under autocast, so that torch decides which operands are cast.
    """
    device, dtype, enabled, _cache, graph, *operands = resolve(node.args, walker.value_of)
    examples = [_example(a) for a in node.args[5:]]

    def call(*values: Any) -> Any:
        # Without the cache, which would keep casts of fake tensors beyond this trace.
        with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False):
            return graph(*values)

    traced = trace(call, examples)
    return _as_called(node, walk_graph(walker, walker.op, traced, operands))


@lowers_higher_order("_export_tracepoint")
def tracepoint(walker: Walker, node: fx.Node) -> Any:
    """_export_tracepoint(*values, kind, path): a marker; returns the values."""
    return list(resolve(node.args, walker.value_of))


def _example(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _as_called(node: fx.Node, results: list[Any]) -> Any:
    """Return a single result without a list if the call returns a tensor."""
    return results if isinstance(node.meta.get("val", ()), list | tuple) else results[0]
