"""Hard sigmoid: the reference against the formula, at the corners too."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.activations import HARD_SIGMOID as COMPOSITE
from coreai_onnx.composites.activations import hard_sigmoid
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_the_formula(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-8, 8, 65), torch.tensor([-3.0, 0.0, 3.0])]).to(dtype)
    wide = x.double()
    expected = torch.clamp(wide + 3, 0, 6) / 6
    assert_close(hard_sigmoid(x), expected.to(dtype))


def test_keeps_nan_and_infinity_apart() -> None:
    x = torch.tensor([float("inf"), float("nan")])
    result = hard_sigmoid(x)
    assert result[0] == 1
    assert result[1].isnan()


def test_has_no_attributes() -> None:
    assert COMPOSITE.attributes == ()
    assert [i.name for i in COMPOSITE.inputs] == ["input"]
