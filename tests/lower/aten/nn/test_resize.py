"""Which way of resizing is taken."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.errors import LoweringError
from tests.lower.checking import check, op_types


def test_nearest_by_a_broken_factor_is_gathered_from_torchs_own_places() -> None:
    model = check(lambda x: F.interpolate(x, size=6), torch.rand(1, 1, 10))
    assert op_types(model) == ["Gather"]


def test_the_same_size_is_nothing() -> None:
    assert op_types(check(lambda x: F.interpolate(x, size=5) + 1, torch.rand(1, 1, 5))) == ["Add"]


def test_antialiasing_is_two_products() -> None:
    model = check(
        lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), torch.rand(1, 1, 8, 8)
    )
    assert op_types(model) == ["MatMul", "MatMul"]


def test_antialiasing_of_unknown_sizes_is_refused() -> None:
    with pytest.raises(LoweringError, match="antialiased"):
        check(
            lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
            torch.rand(1, 1, 8, 8),
            dynamic_shapes=({2: torch.export.Dim("height", min=4)},),
        )
