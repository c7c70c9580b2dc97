"""The gated activation of Gemma's feed-forward layers, in both forms of gelu."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.activations import geglu
from tests.support.tolerances import assert_close

FORMS = ["none", "tanh"]


@pytest.mark.parametrize("approximate", FORMS)
def test_is_gelu_times_up(approximate: str) -> None:
    gate, up = torch.randn(3, 8) * 3, torch.randn(3, 8)
    assert_close(
        geglu(gate, up, approximate=approximate), F.gelu(gate, approximate=approximate) * up
    )


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_is_rounded_once(dtype: torch.dtype, approximate: str) -> None:
    gate, up = torch.randn(3, 8).to(dtype), torch.randn(3, 8).to(dtype)
    wide = F.gelu(gate.double(), approximate=approximate) * up.double()
    assert_close(geglu(gate, up, approximate=approximate), wide.to(dtype))
