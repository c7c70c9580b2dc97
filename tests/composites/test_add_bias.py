"""The bias of a linear layer, and the activation after it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.activations import add_bias
from tests.support.tolerances import assert_close

ACTIVATIONS = {
    "none": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_is_rounded_once(activation: str, dtype: torch.dtype) -> None:
    x, bias = torch.randn(3, 8).to(dtype), torch.randn(8).to(dtype)
    expected = ACTIVATIONS[activation](x.double() + bias.double()).to(dtype)
    assert_close(add_bias(x, bias, activation=activation), expected)


def test_the_result_is_a_new_tensor() -> None:
    x = torch.randn(3, 8)
    assert add_bias(x, torch.zeros(8)).data_ptr() != x.data_ptr()
