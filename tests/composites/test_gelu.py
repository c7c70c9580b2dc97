"""GELU: both forms against their formulas."""

from __future__ import annotations

import math

import pytest
import torch

from coreai_onnx.composites.activations import GELU as COMPOSITE
from coreai_onnx.composites.activations import gelu
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_both_formulas(dtype: torch.dtype) -> None:
    x = torch.linspace(-6, 6, 49).to(dtype)
    wide = x.double()
    exact = wide / 2 * torch.special.erfc(-wide / math.sqrt(2))
    cubic = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    near = wide / 2 * (1 + torch.tanh(cubic))
    assert_close(gelu(x), exact.to(dtype))
    assert_close(gelu(x, approximate="tanh"), near.to(dtype))


def test_knows_two_forms() -> None:
    dims = {"input": (3,)}
    assert COMPOSITE.check(dims, {"approximate": "none"}) == ""
    assert COMPOSITE.check(dims, {"approximate": "fast"}) == "approximate is 'fast'"
