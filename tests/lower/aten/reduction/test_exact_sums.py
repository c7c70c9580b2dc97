"""Sums and products of int64 where float64 would round or saturate."""

from __future__ import annotations

import torch

from tests.lower.checking import check, op_types

X = torch.tensor([[2**53 + 1, 3, 2**62], [2**62, 2**62 + 5, -7]])


def test_sums_are_exact_and_wrap() -> None:
    check(lambda x: (x.sum(), x.sum(0), x.sum(1, keepdim=True), x[None].sum((0, 2))), X)


def test_products_are_exact_and_wrap() -> None:
    check(lambda x: (x.prod(), x.prod(0), x.prod(1, keepdim=True), x.int().prod(1)), X)


def test_hashes_of_symbolic_length() -> None:
    primes = torch.tensor([1000000007**k % 2**63 for k in range(3)])
    check(
        lambda x, p: (x * p).sum(-1),
        X,
        primes,
        dynamic_shapes=({0: torch.export.Dim("n")}, None),
        others=[(torch.randint(0, 2**40, (5, 3)), primes)],
    )


def test_of_nothing() -> None:
    x = torch.zeros(2, 0, dtype=torch.int64)
    check(lambda x: (x.sum(1), x.sum(0), x.sum(), x.prod(1), x.prod()), x)


def test_counts_stay_a_reduction() -> None:
    assert "ReduceSum" in op_types(check(lambda x: (x > 0).sum(1), X))
