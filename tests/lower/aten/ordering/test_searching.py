"""Places in sorted sequences, and membership."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([-1.0, 0.0, 0.0, 2.5, 7.0])
X = torch.tensor([[0.0, 3.0, -9.0, 7.0], [INF, -INF, NAN, 2.5]])


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool) -> None:
    side = "right" if right else "left"
    rows = torch.stack([EDGES, EDGES + 1])
    check(
        lambda e, x, r: (
            torch.searchsorted(e, x, right=right),
            torch.searchsorted(r, x, side=side, out_int32=True),
            torch.searchsorted(e, 0.0, right=right),
            torch.bucketize(x, e, right=right),
            torch.bucketize(2.5, e, right=right),
        ),
        EDGES,
        X,
        rows,
    )


def test_a_sorter_gives_the_order() -> None:
    shuffled, sorter = EDGES[[3, 0, 4, 1, 2]], torch.tensor([1, 3, 4, 0, 2])
    check(lambda e, x, s: torch.searchsorted(e, x, sorter=s), shuffled, X, sorter)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64, torch.float16])
def test_searchsorted_dtypes(dtype: torch.dtype) -> None:
    edges, x = torch.tensor([1, 3, 5]).to(dtype), torch.tensor([0, 3, 9]).to(dtype)
    check(torch.searchsorted, edges, x)


def test_large_integers() -> None:
    edges = torch.tensor([2**53, 2**53 + 1, 2**53 + 2])
    check(lambda e: torch.searchsorted(e, e), edges)
    check(lambda e: torch.isin(e, e[1:2]), edges)


def test_isin() -> None:
    tests = torch.tensor([[0.0, 7.0], [INF, NAN]])
    check(
        lambda x, t: (
            torch.isin(x, t),
            torch.isin(x, t, invert=True, assume_unique=True),
            torch.isin(x, 3.0),
            torch.isin(7.0, t),
        ),
        X,
        tests,
    )
    check(torch.isin, torch.tensor([1, 2, 3]), torch.tensor([2.0, 3.0]))


def test_of_nothing() -> None:
    none = torch.zeros(0)
    check(lambda e, x: (torch.searchsorted(e, x), torch.isin(x, e)), none, X)
    check(lambda e, x: (torch.searchsorted(e, x), torch.isin(x, e)), EDGES, none)
    check(lambda e: torch.searchsorted(e, e), none)


def test_symbolic_sizes() -> None:
    n, m = torch.export.Dim("n"), torch.export.Dim("m")
    check(
        lambda e, x: (torch.searchsorted(e, x), torch.isin(x, e)),
        EDGES,
        X,
        dynamic_shapes=({0: m}, {0: n}),
        others=[(torch.arange(9.0), torch.randn(5, 4))],
    )


def test_bincount() -> None:
    x = torch.tensor([1, 5, 1, 0, 3])
    weights = torch.tensor([0.5, 1.0, 2.0, -1.0, 3.0])
    check(torch.bincount, x)
    check(lambda x: torch.bincount(x.to(torch.uint8), minlength=9), x)
    check(torch.bincount, x, weights)
    check(lambda x, w: torch.bincount(x, w.int()), x, weights)
