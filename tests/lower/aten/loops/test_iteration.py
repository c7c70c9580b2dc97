"""Loops made inside a lowering."""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.loops.iteration import any_true, repeat_while
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, dims_of
from tests.lower.aten.pointwise.test_numerics import compute
from tests.support.tolerances import assert_close


def halve_until_below_one(op: OpBuilder, x: Value) -> Value:
    """Halve each element that is at least one, and count the rounds in a second value."""

    def large(inner: OpBuilder, state: list[Value]) -> Value:
        return any_true(inner, inner.GreaterOrEqual(state[0], 1.0))

    def step(inner: OpBuilder, state: list[Value]) -> list[Value]:
        again = inner.GreaterOrEqual(state[0], 1.0)
        return [
            inner.Where(again, inner.Mul(state[0], 0.5), state[0]),
            inner.Add(state[1], inner.Cast(again, to=1)),
        ]

    small, rounds = repeat_while(op, [x, op.Mul(x, 0.0)], large, step)
    assert dims_of(small) == dims_of(x)
    return op.Add(small, op.Mul(rounds, 10.0))


def test_rounds_differ_by_element():
    x = torch.tensor([0.5, 1.0, 9.0])
    assert_close(compute(halve_until_below_one, x), torch.tensor([0.5, 10.5, 40.5625]))


def test_no_round_at_all():
    assert_close(compute(halve_until_below_one, torch.tensor([0.25])), torch.tensor([0.25]))
    assert_close(compute(halve_until_below_one, torch.empty(0, 2)), torch.empty(0, 2))


def test_any_true():
    for values in ([False, True], [False, False]):
        got = compute(any_true, torch.tensor(values))
        assert_close(got, torch.tensor(any(values)))
    assert_close(compute(any_true, torch.empty(0, dtype=torch.bool)), torch.tensor(False))
