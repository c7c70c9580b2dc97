"""Softmax in its variants, and dropout, against torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.lower.checking import check, lower_module, run_model

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INF = float("inf")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("function", [F.softmax, F.log_softmax, F.softmin])
def test_axes(function, dim, dtype):
    check(lambda x: function(x, dim), torch.randn(2, 3, 4).to(dtype))
    check(lambda x: function(x, dim), torch.randn(2, 3, 4).to(dtype), decompose=True)


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax, F.softmin])
def test_dtype_argument(function):
    for x in (torch.randn(3, 4).half(), torch.tensor([[1, 2], [3, 4]])):
        check(lambda x: function(x, -1, dtype=torch.float32), x)
    check(lambda x: function(x, 0, dtype=torch.float64), torch.randn(3))
    check(lambda x: torch.special.softmax(x, 0, dtype=torch.float64), torch.randn(3))
    check(lambda x: torch.special.log_softmax(x, 0, dtype=torch.float64), torch.randn(3))


@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_edges(function):
    check(lambda x: function(x, 0), torch.tensor(2.0))
    check(lambda x: function(x, -1), torch.empty(0, 3))
    check(lambda x: function(x, -1), torch.tensor([[-INF, 1.0], [-INF, -INF], [1e4, -1e4]]))


@pytest.mark.parametrize("dim", [-1, 0])
def test_safe_softmax(dim):
    safe = torch.ops.aten._safe_softmax.default
    x = torch.tensor([[-INF, 1.0, -INF], [-INF, -INF, -INF], [0.0, 1.0, -INF]])
    check(lambda x: safe(x, dim), x)
    check(lambda x: safe(x, 0, torch.float64), torch.tensor(-INF))


def test_dynamic():
    batch = torch.export.Dim("batch")
    check(
        lambda x: (x.softmax(0), x.log_softmax(-1), torch.ops.aten._safe_softmax.default(x, 1)),
        torch.randn(3, 4),
        dynamic_shapes=({0: batch},),
        others=[(torch.randn(5, 4),)],
    )


def test_dropout_in_evaluation():
    check(lambda x: F.dropout(x, 0.5, training=False), torch.randn(4))
    check(lambda x: torch.ops.aten.native_dropout(x, 0.5, False), torch.randn(4))
    check(lambda x: F.alpha_dropout(x, 0.5, training=False), torch.randn(4))
    check(lambda x: F.dropout(x, 1.0, training=True), torch.randn(4))


def test_dropout_in_training():
    x = torch.ones(10_000)
    model = lower_module(lambda x: F.dropout(x, 0.25, training=True), (x,))
    y = torch.from_numpy(run_model(model, (x,))[0])
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((y == 0).float().mean() - 0.25) < 0.03
