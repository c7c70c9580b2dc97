"""The gated activation of Llama's feed-forward layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.activations import swiglu
from tests.support.tolerances import assert_close


def test_is_silu_times_up() -> None:
    gate, up = torch.randn(3, 8) * 10, torch.randn(3, 8)
    assert_close(swiglu(gate, up), F.silu(gate) * up)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_is_rounded_once(dtype: torch.dtype) -> None:
    gate, up = torch.randn(3, 8).to(dtype), torch.randn(3, 8).to(dtype)
    expected = (F.silu(gate.double()) * up.double()).to(dtype)
    assert_close(swiglu(gate, up), expected)


def test_large_gates_do_not_overflow() -> None:
    gate = torch.tensor([-1e4, 0.0, 1e4])
    assert_close(swiglu(gate, torch.ones(3)), torch.tensor([0.0, 0.0, 1e4]))
