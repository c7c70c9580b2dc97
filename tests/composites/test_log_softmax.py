"""The logarithm of the softmax: large numbers, and axes."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.activations import LOG_SOFTMAX as COMPOSITE
from coreai_onnx.composites.activations import log_softmax
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("axis", [-1, 0])
def test_gives_the_formula_without_overflow(axis: int, dtype: torch.dtype) -> None:
    x = (torch.randn(4, 5) * 100).to(dtype)
    expected = x.double() - torch.logsumexp(x.double(), axis, keepdim=True)
    assert_close(log_softmax(x, axis=axis), expected.to(dtype))


def test_an_axis_must_be_there() -> None:
    assert COMPOSITE.check({"input": (2, 3)}, {"axis": -2}) == ""
    wrong = COMPOSITE.check({"input": (2, 3)}, {"axis": 2})
    assert wrong == "axis 2 is out of range for input of rank 2"
