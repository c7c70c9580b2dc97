"""Indices of equal elements are torch's, where torch says that they may be any."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.lower.checking import check

AUTO = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}


def bits(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5


def few_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 7, shape, dtype=torch.uint8)


def few_integers(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape)


def check_rows(
    function: Callable, make: Callable[..., torch.Tensor], *shapes: tuple[int, ...]
) -> None:
    first, *others = (make(*shape) for shape in shapes)
    check(function, first, dynamic_shapes=(AUTO,), others=[(x,) for x in others])


def test_sorted_booleans_and_bytes() -> None:
    check_rows(torch.sort, bits, (3, 40), (2, 17), (4, 1), (2, 1000), (3, 16))
    check_rows(lambda x: torch.sort(x, 0, descending=True), few_bytes, (40, 3), (300, 2))
    check(torch.argsort, bits(50))


@pytest.mark.parametrize("descending", [False, True])
def test_sorted_floats_of_16_bits(descending: bool) -> None:
    x = torch.randn(3, 100).mul(4).round().div(4)
    x[0, ::7], x[1, 5], x[2, 9] = float("nan"), float("-inf"), -0.0
    for dtype in (torch.float16, torch.bfloat16):
        check(lambda x: torch.sort(x, descending=descending), x.to(dtype))


def test_stable_order_is_kept_where_it_is_asked_for() -> None:
    check_rows(lambda x: torch.argsort(x, stable=True), bits, (3, 40), (2, 300))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_selected_integers(largest: bool, ordered: bool) -> None:
    def select(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.topk(x, 3, largest=largest, sorted=ordered)

    check_rows(select, few_integers, (3, 12), (2, 100), (4, 3))


def test_selected_floats_of_few_values() -> None:
    x = torch.randn(6, 30, dtype=torch.bfloat16).mul(2).round()
    check(lambda x: (torch.topk(x, 4), torch.topk(x, 4, largest=False)), x)


def test_many_selected_integers_are_sorted_as_well() -> None:
    check_rows(lambda x: torch.topk(x, 40), few_integers, (3, 60), (2, 200))
    check(lambda x: torch.topk(x, 3, 1), few_integers(5, 10, 5))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_index_of_one_rank(k: int) -> None:
    check_rows(lambda x: torch.kthvalue(x, k), few_integers, (3, 12), (2, 100), (2, 6))


def test_one_rank_along_another_axis() -> None:
    check(lambda x: torch.kthvalue(x, 2, 0, keepdim=True), few_integers(8, 2, 2))
