"""A residual connection and the norm of its sum."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.norms import layer_norm, skip_layer_norm
from tests.support.tolerances import assert_close


def test_gives_torchs_norm_of_the_sum_and_the_sum() -> None:
    x, skip, scale = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(8)
    output, total = skip_layer_norm(x, skip, scale, eps=1e-4)
    assert_close(total, x + skip)
    assert_close(output, F.layer_norm(x + skip, (8,), scale, None, 1e-4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_sum_is_rounded_before_it_is_normalized(dtype: torch.dtype) -> None:
    x, skip = (torch.randn(2, 5, 64).to(dtype) for _ in range(2))
    output, total = skip_layer_norm(x, skip)
    assert total.dtype == output.dtype == dtype
    assert_close(output, layer_norm(x + skip))
