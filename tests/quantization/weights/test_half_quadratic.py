"""Half-quadratic grids: never a larger squared error than the grid of the extremes."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.quantization.weights.grids import extreme_grid
from coreai_onnx.quantization.weights.half_quadratic import half_quadratic_grid
from coreai_onnx.quantization.weights.scheme import Scheme
from tests.quantization.example_weights import grouped


@pytest.mark.parametrize("bits", [4, 3, 2])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_error_of_each_group_falls(bits: int, symmetric: bool) -> None:
    weight, scheme = grouped(64, 3), Scheme(bits, 32, "hqq", symmetric)
    errors = []
    for grid in (extreme_grid(weight, scheme), half_quadratic_grid(weight, scheme)):
        errors.append(np.square(weight - grid.rounded(weight, scheme.levels)).sum(-1))
        assert (grid.zeros == np.rint(grid.zeros)).all()
        assert 0 <= grid.zeros.min() <= grid.zeros.max() < scheme.levels
        assert (grid.scales == grid.scales.astype(np.float16)).all()
    assert (errors[1] <= errors[0]).all()
    assert errors[1].sum() < 0.97 * errors[0].sum()


def test_an_outlier_does_not_widen_the_grid() -> None:
    weight = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 1, 32)
    weight[..., 0] = -1.6
    scheme = Scheme(2, 32, "hqq")
    plain, fitted = (make(weight, scheme) for make in (extreme_grid, half_quadratic_grid))
    assert abs(fitted.scales[0, 0]) < abs(plain.scales[0, 0])


def test_groups_of_equal_values() -> None:
    weight = np.zeros((2, 2, 16), np.float32)
    weight[1, 1] = 0.25
    grid = half_quadratic_grid(weight, Scheme(4, 16))
    assert np.abs(grid.rounded(weight, 16) - weight).max() < 1e-3
