"""Variances, standard deviations, norms and logarithms of sums."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check, op_types

NAN, INF = float("nan"), float("inf")
X = torch.tensor([[1.0, -2.5, 3.0], [0.5, 2.0, 0.0], [4.0, -1.0, 7.0], [2.0, 2.0, 2.0]])
ODD = torch.tensor([[NAN, 0.0, 3.0], [INF, 2.0, -0.0], [-INF, -INF, -INF], [INF, INF, 1.0]])
N = torch.export.Dim("n", min=2)

CASES = {
    "var": lambda x: (x.var(), x.var(1), x.var((0, 1), keepdim=True), x.var(0, unbiased=False)),
    "var_correction": lambda x: (x.var(1, correction=2.5), x.var(1, correction=0)),
    "var_too_few": lambda x: (x[:1].var(0), x[:, :2].var(1, correction=3)),
    "std": lambda x: (x.std(), x.std(1), x.std(0, unbiased=False), x.std(1, correction=2)),
    "var_mean": lambda x: (
        *torch.var_mean(x, unbiased=False),
        *torch.var_mean(x, 1, keepdim=True),
        *torch.var_mean(x, 0, correction=0),
    ),
    "std_mean": lambda x: (*torch.std_mean(x), *torch.std_mean(x, 1)),
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True)),
    "zero_d": lambda x: (x[0, 0].var(correction=0), x[0, 0].logsumexp(0), x[0, 1].norm()),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_values(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("order", [2, 1, 0, 0.5, 3, -1, -2, INF, -INF])
@pytest.mark.parametrize("x", [X, ODD], ids=["ordinary", "odd"])
def test_norms_of_every_order(order: float, x: torch.Tensor) -> None:
    check(
        lambda x: (
            torch.linalg.vector_norm(x, order, 1),
            torch.linalg.vector_norm(x, order),
            torch.linalg.vector_norm(x[0, 2], order),
            x.norm(order, 1, keepdim=True),
        ),
        x,
    )


def test_overloads_of_norm() -> None:
    norm = torch.ops.aten.norm
    check(
        lambda x: (
            norm.Scalar(x, 3),
            norm.ScalarOpt_dim(x, None, [1]),
            norm.ScalarOpt_dtype(x, 1, dtype=torch.float64),
            norm.ScalarOpt_dim_dtype(x, 2, [0], True, dtype=torch.float64),
            torch.linalg.vector_norm(x, dtype=torch.float64),
        ),
        X,
    )


@pytest.mark.parametrize("name", ["logsumexp", "var", "std"])
def test_infinities(name: str) -> None:
    check(CASES[name], ODD)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    check(
        lambda x: (x.var(1), x.std(0), *torch.var_mean(x, 1), x.logsumexp(1), x.norm(dim=1)),
        X.to(dtype),
    )


def test_logsumexp_of_integers() -> None:
    check(lambda x: x.logsumexp(1), torch.tensor([[1, 2], [3, 40]]))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_of_nothing() -> None:
    check(
        lambda x: (x.var(1), *torch.var_mean(x, 1), x.logsumexp(1), x.norm(dim=1)),
        torch.zeros(2, 0),
    )


def test_symbolic_sizes() -> None:
    check(
        lambda x: (x.var(0), x.std(), *torch.var_mean(x, 0, correction=0), x.norm(3, dim=0)),
        X,
        dynamic_shapes=({0: N},),
        others=[(torch.randn(7, 3),)],
    )


def test_population_variance_is_a_mean_of_squares() -> None:
    model = check(lambda x: x.var(-1, correction=0, keepdim=True), X)
    assert op_types(model) == ["ReduceMean", "Sub", "Pow", "ReduceMean"]


def test_prims_var() -> None:
    check(lambda x: torch.ops.prims.var(x, [1], 1.0), X)
