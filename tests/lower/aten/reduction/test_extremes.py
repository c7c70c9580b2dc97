"""Greatest and least elements, with ties, NaN and infinities as in torch."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

NAN, INF = float("nan"), float("inf")
X = torch.tensor(
    [[1.0, NAN, 3.0, INF], [3.0, 1.0, 3.0, 1.0], [-INF, -0.0, 0.0, NAN], [INF, NAN, -INF, NAN]]
)
N = torch.export.Dim("n")

CASES = {
    "amax": lambda x: (x.amax(), x.amax(1), x.amax((0, 1), keepdim=True)),
    "amin": lambda x: (x.amin(), x.amin(0), x.amin(-1, keepdim=True)),
    "aminmax": lambda x: (*x.aminmax(), *x.aminmax(dim=1), *x.aminmax(dim=0, keepdim=True)),
    "max": lambda x: (x.max(), *x.max(0), *x.max(1, keepdim=True)),
    "min": lambda x: (x.min(), *x.min(0), *x.min(1, keepdim=True)),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmax(0, keepdim=True)),
    "argmax_flat": lambda x: x.argmax(keepdim=True),
    "argmin": lambda x: (x.argmin(), x.argmin(1), x[1:2].argmin(-1, keepdim=True)),
    "zero_d": lambda x: (x[0, 0].amax(), *x[0, 0].max(0), x[0, 0].argmin(), x[0, 1].max()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_values(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("width", [3, 17, 64])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_nan_anywhere_wins(width: int, place: int) -> None:
    x = torch.arange(2.0 * width).view(2, width)
    x[0, place] = NAN
    check(lambda x: (x.amax(1), x.amin(1), x.t().amax(0), x.argmax(1), x.argmin(1), x.max()), x)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int16,
        torch.uint8,
        torch.bool,
    ],
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 1, 3, 0], [0, 0, 2, 2]]).to(dtype)
    check(lambda x: (x.amax(1), x.amin(0), *x.max(1), *x.min(1), *x.aminmax(dim=0)), x)
    if dtype != torch.bool:
        check(lambda x: (x.argmax(1), x.argmin(1), x.argmax()), x)


def test_neighbors_beyond_float_precision() -> None:
    check(
        lambda x: (x.max(), x.argmax(), x.argmin(), *x.min(0)),
        torch.tensor([2**53, 2**53 + 1, -(2**53), -(2**53) - 1]),
    )
    check(lambda x: (x.argmax(), x.argmin()), torch.tensor([torch.finfo().max, INF, -INF]))


def test_symbolic_sizes() -> None:
    check(
        lambda x: (x.amax(0), x.amin(1), *x.max(0), x.argmax(), *x.min(1)),
        X,
        dynamic_shapes=({0: N},),
        others=[(torch.randn(7, 4),)],
    )


@pytest.mark.parametrize("opset", [18, 20, 26])
def test_opsets(opset: int) -> None:
    check(lambda x: (x.amax(0), *x.min(1), x.argmax(1), (x > 1).amax(1)), X, opset=opset)


def test_empty_results() -> None:
    check(lambda x: (x.amax(1), *x.max(1), x.argmin(1)), torch.zeros(0, 3))


def test_prims() -> None:
    check(lambda x: (torch.ops.prims.amax(x, [0]), torch.ops.prims.amin(x, [1])), X)
