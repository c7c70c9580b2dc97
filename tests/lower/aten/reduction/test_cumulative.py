"""Running sums, products, extremes and differences."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check, op_types

NAN, INF = float("nan"), float("inf")
X = torch.tensor([[1.0, -2.5, 3.0, 3.0], [0.5, NAN, 0.0, 7.0], [-INF, -INF, 4.0, INF]])
N = torch.export.Dim("n", min=3)

CASES = {
    "cumsum": lambda x: (x.cumsum(0), x.cumsum(-1), x.cumsum(1, dtype=torch.float64)),
    "cumsum_bool": lambda x: ((x > 0).cumsum(1), (x > 0).cumsum(0, dtype=torch.int32)),
    "cumprod": lambda x: (x.cumprod(0), x.cumprod(-1), x[:1].cumprod(1, dtype=torch.int64)),
    "cummax": lambda x: (*x.cummax(1), *x.cummax(0)),
    "cummin": lambda x: (*x.cummin(1), *x.cummin(0)),
    "logcumsumexp": lambda x: (x.logcumsumexp(1), x.logcumsumexp(0)),
    "diff": lambda x: (x[:2].diff(), x[:2].diff(2), (x > 0).diff(dim=0), x[:1].diff(n=0)),
    "diff_ends": lambda x: x[:1].diff(prepend=x[:1, :2], append=x[:1, 3:]),
    "diff_of_too_few": lambda x: x[:2].diff(3, dim=0),
    "trapezoid": lambda x: (torch.trapezoid(x[:1]), torch.trapezoid(x[:1], dx=0.5)),
    "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x[:1], x[:1].cumsum(1)),
    "gradient": lambda x: torch.gradient(x[:2], spacing=2.0, dim=1),
    "zero_d": lambda x: (x[0, 0].cumsum(0), x[0, 0].cumprod(0), *x[0, 0].cummax(0)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_values(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 1, 3, 100], [2, 2, 5, 4]]).to(dtype)
    check(lambda x: (x.cumsum(1), x.cumprod(1), *x.cummax(1), *x.cummin(0), x.diff()), x)


def test_large_integers_wrap() -> None:
    x = torch.tensor([2**53 + 1, 2**62, 2**62, 3])
    check(lambda x: (x.cumsum(0), x.cumprod(0), *x.cummax(0), x.diff()), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats(dtype: torch.dtype) -> None:
    x = (torch.arange(12.0).view(3, 4) / 4 - 1).to(dtype)
    check(lambda x: (x.cumsum(1), x.cumprod(0), *x.cummax(1), x.logcumsumexp(1), x.diff()), x)


def test_a_product_that_leaves_and_comes_back() -> None:
    check(lambda x: x.cumprod(0), torch.tensor([1e-30, 1e30, 1e30, 1e-30, 0.0, 2.0]))


def test_booleans_have_running_extremes() -> None:
    x = torch.tensor([[False, True, False], [False, False, True]])
    check(lambda x: (*x.cummax(1), *x.cummin(1)), x)


def test_symbolic_sizes() -> None:
    check(
        lambda x: (x.cumsum(0), x.cumprod(0), *x.cummin(0), x.logcumsumexp(1), x.diff(dim=0)),
        torch.randn(3, 4),
        dynamic_shapes=({0: N},),
        others=[(torch.randn(7, 4),)],
    )


def test_empty() -> None:
    x = torch.zeros(0, 3)
    check(lambda x: (x.cumsum(0), x.cumprod(1), *x.cummax(0), x.logcumsumexp(0)), x)


def test_products_use_the_op_where_the_opset_has_it() -> None:
    assert op_types(check(lambda x: x.cumprod(0), X, opset=26)) == ["CumProd"]
    assert op_types(check(lambda x: x.cumprod(0), X, opset=18)) == ["Scan"]
