"""Instance normalization's reference against torch's own, rounded statistics included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.channel_norms import INSTANCE_NORM as COMPOSITE
from coreai_onnx.composites.channel_norms import instance_norm
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


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
    assert COMPOSITE.check({"input": (2, 6, 7)}, {}) == ""
    assert COMPOSITE.check({"input": (2, 6)}, {}) == "input has rank 2, at least 3 are needed"
    wrong = COMPOSITE.check({"input": (2, 6, 7), "scale": (6, 1)}, {})
    assert wrong == "scale has rank 2, one number per channel is needed"
