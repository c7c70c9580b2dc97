"""Convolutions spelled as matrix products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.errors import LoweringError
from tests.lower.checking import check, op_types


def test_one_product_per_element_of_the_window() -> None:
    x, w = torch.randint(-9, 9, (1, 2, 5)), torch.randint(-9, 9, (3, 2, 4))
    model = check(lambda x, w: F.conv1d(x, w, padding=2, stride=2), x, w)
    assert op_types(model).count("MatMul") == 4
    assert "Conv" not in op_types(model)


def test_the_transpose_keeps_doubles() -> None:
    x, w = torch.randn(1, 2, 5).double(), torch.randn(2, 3, 4).double()
    model = check(lambda x, w: F.conv_transpose1d(x, w, padding=1, stride=3), x, w)
    assert "ConvTranspose" not in op_types(model)


def test_a_weight_of_symbolic_sizes_is_an_error() -> None:
    sizes = dict.fromkeys(range(3), torch.export.Dim.AUTO)
    x, weight = torch.ones(2, 3, 8, dtype=torch.int64), torch.ones(4, 3, 3, dtype=torch.int64)
    with pytest.raises(LoweringError, match="a weight of symbolic sizes"):
        check(F.conv1d, x, weight, dynamic_shapes=(sizes, sizes))
