"""Order along an axis, with ties and NaN as in torch."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check, lower_module, op_types, run_model
from tests.support.tolerances import assert_close

NAN, INF = float("nan"), float("inf")
X = torch.tensor([[3.0, NAN, INF, -0.0, 0.0, NAN, 1.0], [1.0, 1.0, 5.0, -INF, 1.0, 2.0, 5.0]])
DISTINCT = torch.randperm(24, generator=torch.Generator().manual_seed(0)).view(4, 6).float()
N = torch.export.Dim("n", min=4)

CASES = {
    "sort": lambda x: (*x.sort(), *x.sort(dim=0), *x.sort(descending=True)),
    "sort_stable": lambda x: (*x.sort(stable=True), *x.sort(stable=True, descending=True)),
    "argsort": lambda x: (x.argsort(), x.argsort(0, descending=True), x.argsort(stable=True)),
    "msort": lambda x: x.msort(),
    "zero_d": lambda x: (*x[0, 0].sort(), *x[0, 0].topk(1), *x[0, 0].median(0)),
}
RANKS = {
    "topk": lambda x: (*x.topk(2), *x.topk(3, 0, largest=False), *x.topk(6)),
    "kthvalue": lambda x: (*x.kthvalue(2), *x.kthvalue(3, 0, keepdim=True)),
    "median": lambda x: (x.median(), *x.median(1), *x.median(0, keepdim=True)),
    "nanmedian": lambda x: (x.nanmedian(), *x.nanmedian(1), *x.nanmedian(0, keepdim=True)),
    "mode": lambda x: (*x.mode(1), *x.mode(0, keepdim=True)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_order(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("name", RANKS)
@pytest.mark.parametrize("decompose", [False, True])
def test_ranks(name: str, decompose: bool) -> None:
    check(RANKS[name], DISTINCT, decompose=decompose)


def test_medians_of_nan() -> None:
    check(lambda x: (x.median(), x.nanmedian(), x.median(1)[0], x.nanmedian(1)[0]), X)
    check(lambda x: (x.median(), *x.nanmedian(0)), torch.tensor([NAN, NAN]))
    check(lambda x: (x.median(), x.nanmedian()), torch.zeros(0))


@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.int16, torch.uint8, torch.float16, torch.bfloat16, torch.float64],
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = DISTINCT.to(dtype)
    check(lambda x: (*x.sort(), *x.topk(2), *x.kthvalue(2), *x.median(1), x.msort()), x)


def test_booleans() -> None:
    x = torch.tensor([[True, False, True], [False, False, True]])
    check(lambda x: (*x.sort(stable=True), x.argsort(stable=True, descending=True)), x)


def test_integers_beyond_float_precision() -> None:
    x = torch.tensor([2**53 + 1, 2**53, -(2**53) - 1, 2**53 + 2])
    check(lambda x: (*x.sort(), *x.topk(2), *x.median(0), x.argsort(descending=True)), x)


def test_modes_of_ties() -> None:
    x = torch.tensor([[3, 1, 1, 3, 2], [2, 2, 2, 0, 0], [5, 4, 3, 2, 1]])
    check(lambda x: (x.mode(1)[0], x.float().mode(1)[0]), x)


def test_symbolic_sizes() -> None:
    def ranks(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (*x.sort(0), *x.topk(n - 1, 0), *x.median(0), *x.topk(2, 1), x.argsort(1))

    check(ranks, DISTINCT, dynamic_shapes=({0: N},), others=[(torch.randn(9, 6),)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("ordered", [True, False])
def test_topk_is_one_node(dtype: torch.dtype, ordered: bool) -> None:
    model = lower_module(lambda x: x.topk(3, sorted=ordered), (DISTINCT.to(dtype),))
    assert op_types(model) == ["TopK"]


def test_topk_of_bfloat16_is_one_node_between_casts() -> None:
    model = check(lambda x: x.topk(3), DISTINCT.bfloat16())
    assert op_types(model) == ["Cast", "TopK", "Cast"]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16])
def test_equal_elements_keep_their_order(dtype: torch.dtype) -> None:
    x = (torch.arange(300).view(3, 100) % 7 > 2).to(dtype)

    def sorts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x.sort(), x.argsort(0, descending=True), x.sort(descending=True)[1])

    def stable(x: torch.Tensor) -> list[torch.Tensor]:
        down = x.sort(stable=True, descending=True)[1]
        return [*x.sort(stable=True), x.argsort(dim=0, descending=True, stable=True), down]

    model = lower_module(sorts, (x,))
    assert "Loop" not in op_types(model)
    for got, expected in zip(run_model(model, (x,)), stable(x), strict=True):
        assert_close(got, expected)


def test_ranks_of_equal_integers_are_of_the_first_ones() -> None:
    x = torch.tensor([[5, 1, 5, 1, 5, 1], [2, 2, 2, 2, 2, 0]])
    model = lower_module(lambda x: (x.topk(2)[1], x.kthvalue(2)[1]), (x,))
    largest, second = run_model(model, (x,))
    assert largest.tolist() == [[0, 2], [0, 1]]
    assert second.tolist() == [3, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_topk_of_equal_floats_are_the_first_ones(dtype: torch.dtype) -> None:
    """As a router's scores of a padding token are; torch takes others, and documents none."""
    x = torch.tensor([[0.0, -0.0, 0.0, 0.0], [1.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 4.0]]).to(dtype)
    values, indices = run_model(lower_module(lambda x: x.topk(2, dim=1), (x,)), (x,))
    assert_close(values, x.topk(2, dim=1)[0])
    assert indices.tolist() == [[0, 1], [1, 2], [3, 0]]


@pytest.mark.parametrize("opset", [18, 21, 26])
def test_opsets(opset: int) -> None:
    check(lambda x: (*x.sort(), *x.topk(2), *x.nanmedian(1)), DISTINCT, opset=opset)
