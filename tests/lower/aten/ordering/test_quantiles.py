"""Quantiles with every interpolation, and what a NaN does to them."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

X = torch.tensor([[3.0, 1.0, 2.5, -4.0, 8.0], [0.5, 7.0, 2.0, 2.0, 1.0]])
HOLES = X.masked_fill(torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0]]).bool(), float("nan"))
Q = torch.tensor([0.0, 0.1, 0.5, 0.93, 1.0])


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("x", [X, HOLES], ids=["full", "holes"])
def test_interpolations(interpolation: str, x: torch.Tensor) -> None:
    check(
        lambda x, q: (
            x.quantile(q, 1, interpolation=interpolation),
            x.nanquantile(q, 1, interpolation=interpolation),
            x.quantile(0.3, interpolation=interpolation),
            x.nanquantile(0.7, 0, interpolation=interpolation),
        ),
        x,
        Q,
    )


def test_axes_of_the_result() -> None:
    check(
        lambda x, q: (
            x.quantile(q, 0, keepdim=True),
            x.quantile(q, keepdim=True),
            x.quantile(0.5, 1, keepdim=True),
            x[0, 0].quantile(q),
        ),
        X,
        Q,
    )


def test_double() -> None:
    check(lambda x, q: x.quantile(q, 1), X.double(), Q.double())


def test_symbolic_sizes() -> None:
    n = torch.export.Dim("n", min=2, max=1000)
    check(
        lambda x: (x.quantile(0.3, 0), x.nanquantile(0.3)),
        X.t().contiguous(),
        dynamic_shapes=({0: n},),
        others=[(torch.randn(11, 2),)],
    )
