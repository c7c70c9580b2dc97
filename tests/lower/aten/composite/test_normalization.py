"""Group, instance and batch norms that stay whole, and those that must not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from tests.lower.aten.composite_forms import FORMS, check


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


@pytest.mark.parametrize("form", FORMS)
def test_group_norm_with_everything_and_with_nothing(form: str) -> None:
    x, w, b = random(2, 6, 4, 5), random(6), random(6)
    found = check(lambda x, w, b: F.group_norm(x, 3, w, b, 1e-3), x, w, b, form=form)
    assert found == {"group_norm": 1}
    found = check(lambda x, w: F.group_norm(x, 2) + F.group_norm(x, 3, w), x, w, form=form)
    assert found == {"group_norm.unscaled": 1, "group_norm.no_bias": 1}


def test_group_norm_of_any_number_of_groups_has_one_body() -> None:
    x, w, b = random(2, 6, 4), random(6), random(6)
    found = check(lambda x, w, b: F.group_norm(F.group_norm(x, 2, w, b), 3, w, b), x, w, b)
    assert found == {"group_norm": 2}


def test_sizes_may_change() -> None:
    x, other, w = random(2, 6, 4, 5), random(3, 6, 7, 1), random(6)
    sizes = ({0: Dim("batch"), 2: Dim("height"), 3: Dim.DYNAMIC}, None)
    found = check(
        lambda x, w: F.group_norm(x, 3, w) + F.instance_norm(x),
        x, w, dynamic_shapes=sizes, others=(other.repeat(1, 1, 1, 2), w),
    )  # fmt: skip
    assert found == {"group_norm": 1, "instance_norm": 1}


@pytest.mark.parametrize("form", ["training", "own_table"])
def test_instance_norm(form: str) -> None:
    x, w, b = random(2, 6, 4, 5), random(6), random(6)
    found = check(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, w, b, form=form)
    assert found == {"instance_norm": 1}


@pytest.mark.parametrize("form", FORMS)
def test_running_statistics_make_a_batch_norm(form: str) -> None:
    x, mean, variance = random(2, 6, 4, 5), random(6), torch.rand(6) + 0.5
    w, b = random(6), random(6)

    def normalize(x, mean, variance, w, b):
        first = F.batch_norm(x, mean, variance, w, b, eps=1e-3)
        return F.instance_norm(first, mean, variance, use_input_stats=False)

    assert check(normalize, x, mean, variance, w, b, form=form) == {"batch_norm": 2}


def test_float16_with_float32_parameters() -> None:
    x = random(2, 6, 4).half()
    mean, variance, w, b = random(6), torch.rand(6) + 0.5, random(6), random(6)
    found = check(F.batch_norm, x, mean, variance, w, b)
    assert found == {"batch_norm": 1}


@pytest.mark.parametrize("form", FORMS)
def test_statistics_of_the_batch_are_no_composite(form: str) -> None:
    x, mean, variance = random(4, 6, 3), random(6), torch.rand(6)
    assert check(lambda x: F.batch_norm(x, None, None, training=True), x, form=form) == {}
    found = check(
        lambda x, m, v: F.batch_norm(x, m.clone(), v.clone(), training=True), x, mean, variance,
        form=form,
    )  # fmt: skip
    assert found == {}


def test_statistics_that_are_used_are_spelled_out() -> None:
    x, w, b = random(2, 6, 4), random(6), random(6)
    found = check(lambda x, w, b: torch.native_group_norm(x, w, b, 2, 6, 4, 3, 1e-5)[1], x, w, b)
    assert found == {}
    found = check(lambda x, w, b: torch.native_group_norm(x, w, b, 2, 6, 4, 3, 1e-5)[0], x, w, b)
    assert found == {"group_norm": 1}


def test_nothing_to_normalize_is_spelled_out() -> None:
    assert check(lambda x: F.group_norm(x, 3), random(0, 6, 4)) == {}
