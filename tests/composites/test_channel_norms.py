"""Group, instance and batch norms, against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.channel_norms import (
    BATCH_NORM,
    GROUP_NORM,
    INSTANCE_NORM,
    batch_norm,
    group_norm,
    instance_norm,
)
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", ["scale_bias", "scale", "bias", "none"])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 7), (2, 6, 3, 4)], ids=str)
def test_gives_torchs_group_norm(shape: tuple[int, ...], affine: str, dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    scale = torch.randn(6).to(dtype) if "scale" in affine else None
    bias = torch.randn(6).to(dtype) if "bias" in affine else None
    wide = [None if t is None else t.double() for t in (scale, bias)]
    expected = F.group_norm(x.double(), 3, *wide, eps=1e-4).to(dtype)
    assert_close(group_norm(x, scale, bias, num_groups=3, eps=1e-4), expected)


def test_groups_must_divide_channels() -> None:
    def check(groups: int, **dims: tuple[int | None, ...]) -> str:
        return GROUP_NORM.check(dims, {"num_groups": groups})

    assert check(3, input=(2, 6, 7), scale=(6,)) == ""
    assert (
        check(4, input=(2, 6))
        == "the number of channels must be a multiple of num_groups (4), got 6"
    )
    assert check(0, input=(2, 6)) == "num_groups must be at least 1, got 0"
    assert check(3, input=(2, 6), bias=(5,)) == "bias has 5 numbers for 6 channels"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(2, 6, 7), (2, 6, 3, 4)], ids=str)
def test_gives_torchs_instance_norm(
    shape: tuple[int, ...], affine: bool, dtype: torch.dtype
) -> None:
    x = (torch.randn(shape) * 3).to(dtype)
    scale = (torch.rand(6) + 0.5).to(dtype) if affine else None
    bias = (torch.rand(6) + 5).to(dtype) if affine else None  # no cancellation of the last digit
    expected = F.instance_norm(x, weight=scale, bias=bias, eps=1e-4)
    assert_close(instance_norm(x, scale, bias, eps=1e-4), expected)


def test_one_axis_of_places_is_needed() -> None:
    assert INSTANCE_NORM.check({"input": (2, 6, 7)}, {}) == ""
    assert INSTANCE_NORM.check({"input": (2, 6)}, {}) == "input must have rank 3 or higher, got 2"
    wrong = INSTANCE_NORM.check({"input": (2, 6, 7), "scale": (6, 1)}, {})
    assert wrong == "scale must have rank 1, one number per channel, got 2"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 6), (2, 6, 7), (2, 6, 3, 4), (2, 6, 2, 3, 2)], ids=str)
def test_gives_torchs_batch_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    scale, bias, mean = (torch.randn(6).to(dtype) for _ in range(3))
    variance = (torch.rand(6) + 0.5).to(dtype)
    wide = [t.double() for t in (x, mean, variance, scale, bias)]
    expected = F.batch_norm(*wide, eps=1e-4).to(dtype)
    assert_close(batch_norm(x, scale, bias, mean, variance, eps=1e-4), expected)


def test_every_parameter_has_one_number_per_channel() -> None:
    parameters = dict.fromkeys(("scale", "bias", "mean", "variance"), (6,))
    assert BATCH_NORM.check({"input": (2, 6), **parameters}, {}) == ""
    wrong = BATCH_NORM.check({"input": (2, 5), **parameters}, {})
    assert wrong == "scale has 6 numbers for 5 channels"
