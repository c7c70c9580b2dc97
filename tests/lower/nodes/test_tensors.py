"""Sizes of views and index tensors."""

from __future__ import annotations

import pytest
import sympy

from coreai_onnx.lower.nodes.tensors import ceil_div, floor_div, is_empty, resolved

N = sympy.Symbol("n", integer=True, positive=True)


def test_a_hole_is_what_is_left() -> None:
    assert resolved((2, 3, 4), [-1, 6]) == [4, 6]
    assert resolved((N, 4), [-1, 2]) == [2 * N, 2]
    assert resolved((N, 4), [N, 2, -1]) == [N, 2, 2]
    assert resolved((2, 3), [3, 2]) == [3, 2]


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (6, 3)])
def test_quotients_round_as_python(a: int, b: int) -> None:
    assert floor_div(a, b) == a // b
    assert ceil_div(a, b) == -(-a // b)


def test_symbolic_quotients() -> None:
    assert floor_div(4 * N, 2) == 2 * N
    assert ceil_div(N, 2).subs(N, 5) == 3


def test_empty() -> None:
    assert is_empty((2, 0))
    assert not is_empty((2, N))
