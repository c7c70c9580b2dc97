"""Indices of equal elements may be any of them, and only of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tools.operators.entries import Call, Slot
from tools.operators.ties import same_but_for_ties

X = torch.tensor([[2, 1, 2, 3], [1, 1, 1, 0]])


def call(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    leaves, spec = pytree.tree_flatten(((Slot(0), *args), kwargs))
    return Call(operator, tuple(leaves), spec, (X,))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ([[1, 2, 0, 3], [3, 2, 0, 1]], True),
        ([[1, 0, 2, 3], [3, 1, 0, 2]], True),
        ([[0, 1, 2, 3], [3, 0, 1, 2]], False),
        ([[1, 0, 0, 3], [3, 0, 1, 2]], False),
    ],
    ids=["equal ones exchanged", "in one row", "of another value", "one twice"],
)
def test_sorted_elements(other: list[list[int]], same: bool) -> None:
    expected = list(torch.sort(X, stable=True))
    assert same_but_for_ties(call(torch.sort), [expected[0], torch.tensor(other)], expected) is same
    indices = [torch.tensor(other)], [expected[1]]
    assert same_but_for_ties(call(torch.argsort, -1), *indices) is same


def test_a_stable_sort_has_one_order() -> None:
    values, indices = torch.sort(X, stable=True)
    other = [values, indices[:, [0, 2, 1, 3]]]
    assert not same_but_for_ties(call(torch.sort, stable=True), other, [values, indices])


def test_other_values_are_no_tie() -> None:
    values, indices = torch.topk(X, 2)
    assert not same_but_for_ties(call(torch.topk, 2), [values + 1, indices], [values, indices])


def test_one_rank_along_a_dropped_axis() -> None:
    values, expected = torch.kthvalue(X, 2, 1)
    first, other = torch.tensor([0, 0]), torch.tensor([1, 0])
    given = call(torch.kthvalue, 2, 1)
    assert same_but_for_ties(given, [values, first], [values, expected])
    assert not same_but_for_ties(given, [values, other], [values, expected])


def test_other_operators_have_no_ties() -> None:
    expected = [torch.tensor([0]), torch.tensor([0])]
    assert not same_but_for_ties(call(torch.cummax, 0), [expected[0], expected[1] + 1], expected)
