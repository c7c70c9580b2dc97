"""Activations that stay whole, in every form of a program that has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.lower.aten.composite_forms import FORMS, check


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("form", FORMS)
def test_gelu_keeps_its_form(form: str) -> None:
    found = check(lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), random(2, 5), form=form)
    assert found == {"gelu": 1, "gelu.tanh": 1}


@pytest.mark.parametrize("form", ["training", "own_table"])
@pytest.mark.parametrize(
    ("function", "name"),
    [(F.silu, "silu"), (F.hardsigmoid, "hard_sigmoid"), (F.hardswish, "hard_swish")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_what_only_our_table_keeps(
    function: Callable[[torch.Tensor], torch.Tensor], name: str, form: str
) -> None:
    assert check(function, random(2, 5), form=form) == {name: 1}
    assert check(function, random(2, 5, dtype=torch.float16), form=form) == {name: 1}


@pytest.mark.parametrize("form", FORMS)
def test_log_softmax_of_two_axes_has_one_body(form: str) -> None:
    x = random(3, 4, 5)
    found = check(lambda x: F.log_softmax(x, 1) + F.log_softmax(x, -1), x, form=form)
    assert found == {"log_softmax": 2}


@pytest.mark.parametrize("form", FORMS)
def test_a_dtype_is_a_cast_before(form: str) -> None:
    x = random(3, 4, dtype=torch.float16)
    found = check(lambda x: F.log_softmax(x, 0, dtype=torch.float32), x, form=form)
    assert found == {"log_softmax": 1}


def test_what_composites_do_not_take_is_spelled_out() -> None:
    assert check(lambda x: torch.special.log_softmax(x, 0), torch.randn(())) == {}
    assert check(F.silu, torch.randn(0, 3)) == {}
    assert check(lambda x: torch.special.log_softmax(x, 0), random(4)) == {"log_softmax": 1}
