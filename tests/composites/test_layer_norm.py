"""Layer normalization's reference against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.norms import layer_norm
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", ["scale_bias", "scale", "bias", "none"])
@pytest.mark.parametrize("shape", [(16,), (4, 8)], ids=str)
def test_gives_torchs_layer_norm(shape: tuple[int, ...], affine: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, *shape).to(dtype)
    scale = torch.randn(shape).to(dtype) if "scale" in affine else None
    bias = torch.randn(shape).to(dtype) if "bias" in affine else None
    axes = tuple(range(-len(shape), 0))
    wide = [None if t is None else t.double() for t in (scale, bias)]
    expected = F.layer_norm(x.double(), shape, *wide, eps=1e-4).to(dtype)
    assert_close(layer_norm(x, scale, bias, axes=axes, eps=1e-4), expected)
