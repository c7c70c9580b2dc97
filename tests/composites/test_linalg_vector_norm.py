"""Vector norms of every order against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from coreai_onnx.composites.norms import LINALG_VECTOR_NORM as COMPOSITE
from coreai_onnx.composites.norms import linalg_vector_norm
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 2.0, 3.0, -2.0, math.inf, -math.inf])
def test_gives_the_definition(order: float, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5).to(dtype)
    magnitudes = x.double().abs()
    if order == 0:
        expected = (magnitudes != 0).sum((0, 2)).double()
    elif math.isinf(order):
        expected = magnitudes.amax((0, 2)) if order > 0 else magnitudes.amin((0, 2))
    else:
        expected = (magnitudes**order).sum((0, 2)) ** (1 / order)
    assert_close(linalg_vector_norm(x, ord=order, axes=(0, 2)), expected.to(dtype))


def test_axes_may_stay() -> None:
    assert linalg_vector_norm(torch.ones(2, 3), axes=(-1,), keep_dim=1).shape == (2, 1)


def test_axes_are_counted_from_the_front() -> None:
    dims = {"input": (2, 3, 4)}
    assert COMPOSITE.canonical(dims, {"axes": (-1, 0)})["axes"] == [0, 2]
    assert COMPOSITE.check(dims, {"axes": (0, -3)}) == "axes [0, -3] name one axis twice"
    assert COMPOSITE.check(dims, {"axes": ()}) == "axes is empty"
