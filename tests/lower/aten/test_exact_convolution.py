"""Convolutions spelled as matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F

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
