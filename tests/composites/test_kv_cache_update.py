"""New tokens written into a cache, against the static cache of transformers."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.attention import kv_cache_update
from coreai_onnx.lower.build.composite_checks import CompositeCallError
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


def test_one_position_for_all() -> None:
    cache, update = torch.randn(2, 3, 9, 4), torch.randn(2, 3, 2, 4)
    expected = cache.clone()
    expected[:, :, 5:7] = update
    before = cache.clone()
    assert_close(kv_cache_update(cache, update, torch.tensor(5)), expected)
    assert_close(cache, before)
    columns = torch.arange(5, 7)
    assert_close(before.index_copy(2, columns, update), expected)  # as a StaticCache writes


def test_a_position_per_row() -> None:
    cache, update = torch.zeros(2, 1, 4, 1), torch.ones(2, 1, 2, 1)
    actual = kv_cache_update(cache, update, torch.tensor([0, 2]))
    assert actual[:, 0, :, 0].tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("position", [torch.tensor(3), torch.tensor([0, -1])])
def test_a_place_outside_is_an_error(position: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        kv_cache_update(torch.zeros(2, 1, 4, 1), torch.ones(2, 1, 2, 1), position)


@pytest.mark.parametrize(
    ("update", "message"),
    [((2, 3, 10, 4), "update has 10 tokens, cache 9 places"), ((3, 2, 4), "update has rank 3")],
)
def test_a_call_that_makes_no_sense_is_refused(update: tuple[int, ...], message: str) -> None:
    with pytest.raises(CompositeCallError, match=message):
        Case("kv_cache_update", ((2, 3, 9, 4), update, ()), {}, {2: torch.int64}).model(
            torch.float32, dynamic=False
        )
