"""Sums, products, means and truth over axes."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check, op_types

NAN, INF = float("nan"), float("inf")
X = torch.tensor([[1.0, NAN, 3.0], [INF, 2.0, -0.0], [-1.5, 0.0, 2.0]])
N = torch.export.Dim("n")

CASES = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True), x.sum([])),
    "sum_dtype": lambda x: (x[2].sum(dtype=torch.int64), x.sum(0, dtype=torch.float64)),
    "sum_bool": lambda x: (x[2].sum(dtype=torch.bool), (x > 0).sum(1)),
    "sum_to_size": lambda x: (x.sum_to_size(1, 3), x[None].sum_to_size(3, 1), x.sum_to_size(3)),
    "prod": lambda x: (x.prod(), x.prod(-1, keepdim=True), (x > 0).prod(0)),
    "prod_dtype": lambda x: (x[2].prod(dtype=torch.int32), x.prod(0, dtype=torch.bool)),
    "mean": lambda x: (x.mean(), x.mean(0), x.mean((-1,), keepdim=True)),
    "mean_dtype": lambda x: (x > 0).mean(dtype=torch.float32),
    "nansum": lambda x: (x.nansum(), x.nansum(1), x.nansum(0, dtype=torch.float64)),
    "nanmean": lambda x: (x.nanmean(), x.nanmean(1, keepdim=True), (x * NAN).nanmean(0)),
    "any": lambda x: (x.any(), x.any(1), (x > 9).any((0, 1)), (x > 2).any(0, keepdim=True)),
    "all": lambda x: (x.all(), x.all(1), (x < 9).all((0, 1)), (x > 2).all(0, keepdim=True)),
    "all_no_axes": lambda x: torch.ops.aten.all.dims(x, []),
    "count_nonzero": lambda x: (x.count_nonzero(), x.count_nonzero(1), x.count_nonzero((0, 1))),
    "zero_d": lambda x: (x[0, 0].sum(), x[0, 0].mean(0), x[0, 0].any(), x[0, 0].prod(0)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_values(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
def test_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([[100, 100, 77], [0, 3, -100 if dtype.is_signed else 5]]).to(dtype)
    check(lambda x: (x.sum(), x.sum(1), x.prod(0), x.any(1), x.all(1), x.count_nonzero(1)), x)
    check(lambda x: (x.sum(dtype=dtype), x.nansum(1), x.prod(1, dtype=dtype)), x)


def test_large_integers_are_exact() -> None:
    x = torch.tensor([[2**53 + 1, 2**60, 3, 2**62], [2**62, -7, 2**62, 2**61 - 1]])
    check(lambda x: (x.sum(), x.sum(0), x.sum(1, keepdim=True), x.prod(1), x.prod()), x)
    check(
        lambda x: (x.sum(0), x.sum((0, 1)), x.prod(0, keepdim=True)),
        x,
        dynamic_shapes=({0: N},),
        others=[(torch.randint(-(2**62), 2**62, (5, 4)),)],
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats(dtype: torch.dtype) -> None:
    x = torch.randn(4, 5).to(dtype)
    check(lambda x: (x.sum(1), x.mean(0), x.prod(1), x.any(0), x.nanmean(1), x.all()), x)


def test_nanmean_sums_in_its_dtype() -> None:
    x = torch.tensor([[1e8, 1.0, NAN, -1e8]])
    check(lambda x: x.nanmean(1, dtype=torch.float64), x)


def test_of_nothing() -> None:
    x = torch.zeros(2, 0, 3)
    check(
        lambda x: (x.sum(1), x.prod(1), x.mean(1), x.any(1), x.all(1), x.sum(0), x.mean(), x.all()),
        x,
    )


def test_symbolic_sizes() -> None:
    check(
        lambda x: (x.sum(0), x.mean(0), x.any(0), x.all(), x.nanmean(), x.count_nonzero(0)),
        X,
        dynamic_shapes=({0: N},),
        others=[(torch.randn(7, 3),), (torch.zeros(1, 3),)],
    )


@pytest.mark.parametrize("opset", [18, 20, 26])
def test_opsets(opset: int) -> None:
    check(lambda x: (x.sum(0), x.any(1), x.all(1), x.mean(1)), X, opset=opset)


def test_a_mean_is_one_node() -> None:
    assert op_types(check(lambda x: x.mean(-1, keepdim=True), X)) == ["ReduceMean"]


def test_prims() -> None:
    prims = torch.ops.prims
    check(
        lambda x: (prims.sum(x, [0]), prims.prod(x, [0, 1])),
        X,
    )


@pytest.mark.parametrize("decompose", [False, True])
def test_checks_of_all_and_any_elements(decompose: bool) -> None:
    """transformers asserts in this way that there are as many image tokens as image features."""

    def checked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch._assert_async(torch._is_all_true(x > -100))
        torch._assert_async(torch._is_any_true(x < 100), "all are large")
        return torch._is_all_true(x > 0), torch._is_any_true(x > 0), x + 1

    check(checked, torch.tensor([1.0, -1.0, 2.0]), decompose=decompose)
    check(checked, torch.ones(3), decompose=decompose)


EXACT = torch.tensor([[2**53 + 1, 3, 2**62], [2**62, 2**62 + 5, -7]])


def test_sums_are_exact_and_wrap() -> None:
    check(lambda x: (x.sum(), x.sum(0), x.sum(1, keepdim=True), x[None].sum((0, 2))), EXACT)


def test_products_are_exact_and_wrap() -> None:
    check(lambda x: (x.prod(), x.prod(0), x.prod(1, keepdim=True), x.int().prod(1)), EXACT)


def test_hashes_of_symbolic_length() -> None:
    primes = torch.tensor([1000000007**k % 2**63 for k in range(3)])
    check(
        lambda x, p: (x * p).sum(-1),
        EXACT,
        primes,
        dynamic_shapes=({0: torch.export.Dim("n")}, None),
        others=[(torch.randint(0, 2**40, (5, 3)), primes)],
    )


def test_exact_sum_of_nothing() -> None:
    x = torch.zeros(2, 0, dtype=torch.int64)
    check(lambda x: (x.sum(1), x.sum(0), x.sum(), x.prod(1), x.prod()), x)


def test_counts_stay_a_reduction() -> None:
    assert "ReduceSum" in op_types(check(lambda x: (x > 0).sum(1), EXACT))
