"""Removes arithmetic with a neutral element."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import bypass_nodes
from coreai_onnx.passes.engine.match import constant_of, dtype_of, rank_of
from coreai_onnx.passes.engine.why import Why

_COMMUTATIVE = ("Add", "Mul", "And", "Or")


def remove_neutral_operands(graph: gs.Graph, why: Why) -> int:
    """x + 0 and x - 0 of integers, x * 1, x / 1, And(x, True), Or(x, False) → x.

    x ─Mul(1.0)→ y ─Relu→ z     becomes     x ─Relu→ z

    A float plus 0 is not removed: -0 + 0 is 0.
    """
    ops = (*_COMMUTATIVE, "Sub", "Div")
    return bypass_nodes(graph, why, ops, lambda node, _: _kept(node) is not None, _kept)


def _kept(node: gs.Node) -> gs.Tensor | None:
    """Return the operand that equals the result; None if neither does."""
    if len(node.inputs) != 2:
        return None
    sides = [(0, 1), (1, 0)] if node.op in _COMMUTATIVE else [(0, 1)]
    for index, other in sides:
        tensor, constant = node.inputs[index], constant_of(node.inputs[other], at_most=1)
        if constant is None or constant.size != 1 or not _is_neutral(node, constant):
            continue
        rank = rank_of(tensor)
        if constant.ndim == 0 or (rank is not None and rank >= constant.ndim):
            return tensor
    return None


def _is_neutral(node: gs.Node, constant: np.ndarray) -> bool:
    if node.op in ("And", "Or"):
        return bool(constant.reshape(())) is (node.op == "And")
    if constant.dtype.kind == "O":
        return False
    if node.op in ("Mul", "Div"):
        return bool(np.all(constant == 1))
    dtype = dtype_of(node.inputs[0]) or constant.dtype
    return dtype.kind in "iu" and not constant.any()
