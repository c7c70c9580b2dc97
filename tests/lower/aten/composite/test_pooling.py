"""Average pooling, pixel shuffles and vector norms that stay whole, with all their arguments."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from tests.lower.aten.composite_forms import FORMS, check


@pytest.mark.parametrize("form", FORMS)
def test_pooling_of_different_windows_has_one_body(form: str) -> None:
    def pool(x):
        windows = itertools.product((False, True), (False, True))
        parts = [F.avg_pool2d(x, (3, 2), 2, (1, 1), *w).flatten() for w in windows]
        return torch.cat([*parts, F.avg_pool2d(x, 2).flatten()])

    assert check(pool, torch.randn(2, 3, 7, 8), form=form) == {"avg_pool_2d": 5}


def test_a_divisor_of_ones_own() -> None:
    def pool(x):
        counted = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)
        return counted + F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=7)

    x = torch.randn(2, 3, 8, 8)
    assert check(pool, x) == {"avg_pool_2d": 1, "avg_pool_2d.divisor": 1}
    assert check(pool, x.double()) == {"avg_pool_2d": 1, "avg_pool_2d.divisor": 1}


@pytest.mark.parametrize("form", FORMS)
def test_volumes(form: str) -> None:
    x = torch.randn(2, 2, 5, 6, 7)
    found = check(lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), x, form=form)
    assert found == {"avg_pool_3d": 1}


def test_one_image_by_itself_and_other_sizes() -> None:
    x, other = torch.randn(3, 8, 9), torch.randn(3, 12, 5)
    sizes = ({1: Dim("height"), 2: Dim("width")},)
    found = check(lambda x: F.avg_pool2d(x, 3, 1, 1), x, dynamic_shapes=sizes, others=(other,))
    assert found == {"avg_pool_2d": 1}


@pytest.mark.parametrize("form", ["training", "own_table"])
def test_pixel_shuffles_of_any_rank(form: str) -> None:
    x = torch.randn(2, 3, 8, 2, 3)

    def shuffle(x):
        return F.pixel_shuffle(x, 2).flatten() + F.pixel_shuffle(x[0], 2).flatten().repeat(2)

    assert check(shuffle, x, form=form) == {"pixel_shuffle": 1, "pixel_shuffle.any_rank": 1}


@pytest.mark.parametrize("form", FORMS)
def test_vector_norms_keep_order_axes_and_dims(form: str) -> None:
    def norms(x):
        lengths = torch.linalg.vector_norm(x, 2, (0, -1), keepdim=True).flatten()
        all_of_it = torch.linalg.vector_norm(x).reshape(1)
        other = torch.linalg.vector_norm(x, 3.5, 1).flatten()
        third = torch.linalg.vector_norm(x, 4.5, 1).flatten()
        return torch.cat([lengths, all_of_it, other, third])

    found = check(norms, torch.randn(3, 4, 5), form=form)
    assert found == {"linalg_vector_norm": 2, "linalg_vector_norm.power": 2}


@pytest.mark.parametrize("order", [float("inf"), float("-inf"), 0, 1])
def test_other_orders_and_nan(order: float) -> None:
    x = torch.tensor([[1.0, -2.0, 0.0], [float("nan"), 3.0, 0.0]])
    assert check(lambda x: torch.linalg.vector_norm(x, order, 1), x) == {"linalg_vector_norm": 1}


@pytest.mark.parametrize("form", FORMS)
def test_a_dtype_is_a_cast_before(form: str) -> None:
    x = torch.randn(3, 4).half() * 300
    found = check(lambda x: torch.linalg.vector_norm(x, dtype=torch.float32), x, form=form)
    assert found == {"linalg_vector_norm": 1}


def test_what_composites_do_not_take_is_spelled_out() -> None:
    assert check(torch.linalg.vector_norm, torch.tensor(-3.0)) == {}
    assert check(lambda x: torch.linalg.vector_norm(x, dim=0), torch.randn(0, 3)) == {}
    assert check(lambda x: F.pixel_shuffle(x, 2), torch.arange(32).reshape(1, 8, 2, 2)) == {}


def test_a_vector_norm_of_a_batch_that_turns_out_empty() -> None:
    x, none = torch.randn(2, 3), torch.zeros(0, 3)
    sizes = ({0: Dim.DYNAMIC},)
    found = check(
        lambda x: torch.linalg.vector_norm(x, dim=-1), x, dynamic_shapes=sizes, others=(none,)
    )
    assert found == {"linalg_vector_norm": 1}
