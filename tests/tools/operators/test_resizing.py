"""Resized calls: dims that move together do, values stay in their domain, ranges are kept."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from tools.operators.entries import Call, Slot
from tools.operators.measuring import MISMATCH, PASS, _exported, measure
from tools.operators.resizing import (
    bounded,
    continued,
    distinct,
    faded,
    larger,
    resized,
    smaller,
    tiled,
)


def call_of(function, *tensors: torch.Tensor) -> Call:
    leaves, spec = pytree.tree_flatten((tensors, {}))
    return Call(function, tuple(Slot(i) for i in range(len(leaves))), spec, tensors)


def test_a_shared_dim_is_resized_in_every_tensor() -> None:
    call = call_of(torch.matmul, torch.randn(2, 3), torch.randn(3, 4))
    program = _exported(call, dynamic=True)
    ones = next(resized(program, call, next(smaller(program, call)), "matmul"))
    assert [tuple(t.shape) for t in ones.tensors] == [(1, 1), (1, 1)]
    wide = next(resized(program, call, next(larger(program, call)), "matmul"))
    assert [tuple(t.shape) for t in wide.tensors] == [(5, 7), (7, 9)]


def test_values() -> None:
    x = torch.tensor([1.0, -2.0])
    assert faded(x, (4,)).tolist() == [1.0, -2.0, 63 / 64, -2 * 63 / 64]
    assert tiled(torch.tensor([0, 2, 6]), (5,)).tolist() == [0, 2, 6, 6, 6]
    assert bounded(torch.tensor([5, 1]), (3,), 2).tolist() == [1, 1, 1]
    assert distinct(torch.tensor([1, 3]), (4,)).tolist() == [1, 3, 4, 6]
    assert torch.linalg.det(continued(torch.eye(2) * 3, (4, 4))) == 9


def test_every_run_is_compared() -> None:
    found = measure(call_of(torch.cumsum, torch.randn(3, 4), torch.tensor(1)), "x", dynamic=True)
    assert found.status != MISMATCH
    found = measure(call_of(torch.mul, torch.randn(3, 4), torch.randn(4)), "mul", dynamic=True)
    assert (found.status, found.resized) == (PASS, {"size 1": PASS, "larger": PASS})
