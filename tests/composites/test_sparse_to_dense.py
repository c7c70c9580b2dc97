"""Sparse weights against masked assignment."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.compressed_weights import sparse_to_dense, streamed
from coreai_onnx.lower.build.composite_checks import CompositeCallError
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("shape", [(11,), (4, 6), (2, 3, 5)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_where_bits_are_set(
    shape: tuple[int, ...], share: float, dtype: torch.dtype
) -> None:
    mask = torch.rand(shape) < share
    values = torch.randn(int(mask.sum())).to(dtype)
    expected = torch.zeros(shape, dtype=dtype)
    expected[mask] = values
    assert_close(sparse_to_dense(values, streamed(mask, 1), shape=shape), expected)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(4,), (1,)], {}, r"shape is \[\], not one"),
        ([(4,), (1,)], {"shape": (3, 3)}, r"mask has 8 codes, shape \[3, 3\] needs 9"),
        ([(2, 2), (1,)], {"shape": (8,)}, "more dims than C"),
    ],
)
def test_a_wrong_call_is_an_error(shapes, attributes, message) -> None:
    case = Case("sparse_to_dense", tuple(shapes), attributes, {1: torch.uint8}, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)
