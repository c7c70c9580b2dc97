"""Dims between the ops of a lowering, against what the ops really give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import RULES, broadcast_dims, infer_dims
from coreai_onnx.lower.nodes.values import Value, maybe_dims
from tests.lower.building import Building

S = sympy.Symbol("s", integer=True, positive=True)
MAKERS: dict[str, Callable[[OpBuilder, Value, Value], Value]] = {
    "Add": lambda op, x, v: op.Add(x, v),
    "Where": lambda op, x, v: op.Where(op.Greater(x, 0.0), v, x),
    "Tanh": lambda op, x, _: op.Tanh(x),
    "Transpose": lambda op, x, _: op.Transpose(x, perm=[2, 0, 1]),
    "Transpose all": lambda op, x, _: op.Transpose(x),
    "Shape": lambda op, x, _: op.Cast(op.Shape(x, start=1), to=1),
    "MatMul": lambda op, x, v: op.MatMul(x, op.Transpose(x, perm=[0, 2, 1])),
    "MatMul vector": lambda op, x, v: op.MatMul(x, op.Squeeze(v, [0])),
    "Squeeze": lambda op, x, v: op.Squeeze(v, [-2]),
    "Unsqueeze": lambda op, x, _: op.Unsqueeze(x, [0, -1]),
    "Reshape": lambda op, x, _: op.Reshape(x, op.shape([2, S, 3, 1])),
    "Expand": lambda op, x, v: op.Expand(v, op.shape([S, 4, 3])),
    "Gather": lambda op, x, _: op.Gather(x, op.const([[0, 1]]), axis=1),
    "Concat": lambda op, x, _: op.Concat(x, x, axis=1),
    "ReduceSum": lambda op, x, _: op.ReduceSum(x, [1], keepdims=0),
    "ReduceMax": lambda op, x, _: op.ReduceMax(x, [-1]),
    "ReduceMean all": lambda op, x, _: op.ReduceMean(x, keepdims=0),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("size", [1, 5])
def test_the_dims_are_what_onnxruntime_gives(name: str, size: int) -> None:
    building = Building()
    x = building.input("x", torch.float32, (S, 2, 3))
    v = building.input("v", torch.float32, (1, 3))
    result = MAKERS[name](building.op, x, v)
    dims = maybe_dims(result)
    assert dims is not None
    (got,) = building.run([result], [torch.randn(size, 2, 3), torch.randn(1, 3)])
    assert got.shape == tuple(int(sympy.sympify(d).subs(S, size)) for d in dims)


def test_nodes_see_complex_values_as_pairs() -> None:
    building = Building()
    x = building.input("x", torch.float32, (S, 2))
    x.meta["complex"] = True
    assert maybe_dims(x) == (S,)
    assert maybe_dims(building.op.Identity(x)) == (S, 2)


def test_ops_without_a_rule_are_not_guessed() -> None:
    assert infer_dims("NonZero", [], {}) is None
    assert "NonZero" not in RULES


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((S, 1), (4,), (S, 4)),
        ((1, S), (S, 1), (S, S)),
        ((), (S,), (S,)),
        ((2, 3), (2, 3), (2, 3)),
    ],
)
def test_broadcast(first: Any, second: Any, expected: Any) -> None:
    assert broadcast_dims(first, second) == expected
