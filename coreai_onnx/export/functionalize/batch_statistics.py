"""Norms in training mode without their in-place update of the running statistics."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_FUNCTIONAL = aten._native_batch_norm_legit_functional.default  # noqa: SLF001 - an op
UPDATES_STATISTICS = "coreai_onnx_updates_statistics"
"""Metadata of the nodes of a norm whose update of running statistics is in nodes of its own."""
_NORMS = (aten.batch_norm.default, aten.instance_norm.default)


def updates_statistics(node: fx.Node) -> bool:
    """Whether a node is a norm that updates running statistics from those of its batch."""
    return node.target in _NORMS and bool(node.args[5] and node.args[3])


class TrainingNorm:
    """A norm in training mode, in nodes that change nothing.

    Args:
        graph: Receives the nodes.
        node: The call of ``batch_norm`` or ``instance_norm`` in the original graph.
        args: Its arguments in the new graph.
    """

    def __init__(self, graph: fx.Graph, node: fx.Node, args: Sequence[Any]) -> None:
        """Append the nodes."""
        self._graph, self._node = graph, node
        make = self._batch_norm if node.target is aten.batch_norm.default else self._instance_norm
        self.result, self.mean, self.var = make(*args[:5], *args[6:8])

    def _batch_norm(
        self, x: fx.Node, weight: Any, bias: Any, mean: fx.Node, var: fx.Node, *rest: Any
    ) -> tuple[fx.Node, fx.Node, fx.Node]:
        both = self._call(_FUNCTIONAL, x, weight, bias, mean, var, True, *rest)  # noqa: FBT003
        result, new_mean, new_var = (self._call(operator.getitem, both, i) for i in (0, 3, 4))
        return result, new_mean, new_var

    def _instance_norm(
        self, x: fx.Node, weight: Any, bias: Any, mean: fx.Node, var: fx.Node, *rest: Any
    ) -> tuple[fx.Node, fx.Node, fx.Node]:
        """Update the statistics with the mean of those of the instances, as torch does."""
        momentum, eps = rest
        # Without running statistics, the op has nothing to write to.
        arguments = (x, weight, bias, None, None, True, momentum, eps, False)
        result = self._call(aten.instance_norm.default, *arguments)
        wide = self._call(aten.to.dtype, x, mean.meta["val"].dtype)
        axes = list(range(2, x.meta["val"].dim()))
        new_mean = self._call(aten.mean.dim, wide, [0, *axes])
        # torch normalizes by the biased variance, and stores the unbiased one.
        new_var = self._call(aten.mean.dim, self._call(aten.var.dim, wide, axes), [0])
        return (
            result,
            self._call(aten.lerp.Scalar, mean, new_mean, momentum),
            self._call(aten.lerp.Scalar, var, new_var, momentum),
        )

    def _call(self, target: Any, *args: Any) -> fx.Node:
        call = self._graph.call_function(target, args)
        call.meta = {**self._node.meta, UPDATES_STATISTICS: True}
        with_value(call, self._node.meta["val"].fake_mode)
        return call


def with_value(node: fx.Node, mode: Any) -> fx.Node:
    """Set the value of a new node to that of its call on the values of its arguments."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    target: Any = node.target
    with mode, torch.no_grad():
        node.meta["val"] = target(*args, **kwargs)
    return node
