"""Tensors that depend on constants only, represented by the steps that compute them later."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coreai_onnx.passes.analysis.evaluate import CannotEvaluateError, can_evaluate, evaluate
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import tensor_from_constant
from coreai_onnx.passes.engine.match import is_standard, maker

_DEPTH = 64
"""The maximum number of nodes between a result and its constants."""


@dataclass(frozen=True)
class _DetachedNode:
    """A node detached from its graph, and the indices of the earlier values that it reads."""

    node: gs.Node
    reads: tuple[int | None, ...]


@dataclass(frozen=True)
class ConstantExpression:
    """A tensor as a function of constants; later changes of the graph do not affect it.

    Attributes:
        constants: The constants it is computed from.
    """

    constants: tuple[gs.Constant, ...]
    _steps: tuple[_DetachedNode, ...]
    _result: int

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute the tensor from the values of the constants.

        Raises:
            CannotEvaluateError: A value may differ between runtimes.
        """
        values = list(arrays)
        for step in self._steps:
            operands = [None if slot is None else values[slot] for slot in step.reads]
            # The result replaces a weight, so it may be as large as one.
            values += evaluate(step.node, operands, limit=sys.maxsize)
        return values[self._result]

    def values(self) -> np.ndarray | None:
        """Compute the tensor without caching it; None if it may differ between runtimes."""
        try:
            return self(*(np.asarray(tensor_from_constant(c).numpy()) for c in self.constants))
        except CannotEvaluateError:
            return None


def constant_expression(tensor: gs.Tensor) -> ConstantExpression | None:
    """Return how a tensor is computed from constants; None if it depends on inputs."""
    nodes = _needed(tensor)
    if nodes is None:
        return None
    tensors: Sequence[gs.Tensor] = [tensor, *(t for node in nodes for t in node.inputs)]
    constants = {id(t): t for t in tensors if isinstance(t, gs.Constant)}
    slots = {key: i for i, key in enumerate(constants)}
    steps, count = [], len(constants)
    for node in nodes:
        reads = tuple(None if t.is_empty() else slots[id(t)] for t in node.inputs)
        outputs = [gs.Variable(f"{i}") for i in range(len(node.outputs))]
        # Without inputs, so that it is not among the readers of tensors, which passes count.
        apart = gs.Node(node.op, attrs=dict(node.attrs), outputs=outputs)
        steps.append(_DetachedNode(apart, reads))
        slots |= {id(t): count + i for i, t in enumerate(node.outputs)}
        count += len(node.outputs)
    return ConstantExpression(tuple(constants.values()), tuple(steps), slots[id(tensor)])


def _needed(tensor: gs.Tensor) -> list[gs.Node] | None:
    """Return the nodes between constants and a tensor, in the order of their computation."""
    order: dict[int, gs.Node] = {}
    open_, seen = [(tensor, False)], set[int]()
    while open_:
        current, done = open_.pop()
        if isinstance(current, gs.Constant) or current.is_empty():
            continue
        node = maker(current)
        if node is None or not is_standard(node, node.op) or not can_evaluate(node.op):
            return None
        if done:
            order.setdefault(id(node), node)
        elif id(node) not in seen:
            seen.add(id(node))
            # A node without inputs may be random.
            if len(seen) > _DEPTH or not node.inputs:
                return None
            open_.append((current, True))
            open_ += [(source, False) for source in node.inputs]
    return list(order.values())
