"""Batch normalization's reference against torch's own outside of training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.channel_norms import BATCH_NORM as COMPOSITE
from coreai_onnx.composites.channel_norms import batch_norm
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


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
    assert COMPOSITE.check({"input": (2, 6), **parameters}, {}) == ""
    wrong = COMPOSITE.check({"input": (2, 5), **parameters}, {})
    assert wrong == "scale has 6 numbers for 5 channels"
