"""Group normalization's reference against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.channel_norms import GROUP_NORM as COMPOSITE
from coreai_onnx.composites.channel_norms import group_norm
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
        return COMPOSITE.check(dims, {"num_groups": groups})

    assert check(3, input=(2, 6, 7), scale=(6,)) == ""
    assert check(4, input=(2, 6)) == "the number of channels is 6, not a multiple of num_groups, 4"
    assert check(0, input=(2, 6)) == "num_groups is 0, at least 1 is needed"
    assert check(3, input=(2, 6), bias=(5,)) == "bias has 5 numbers for 6 channels"
