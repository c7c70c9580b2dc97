"""Grids of extremes cover a group; half-quadratic ones never have a larger squared error."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.quantization.weights.grids import (
    Grid,
    _total,
    by_element,
    extreme_grid,
    half_quadratic_grid,
    representable,
)
from coreai_onnx.quantization.weights.scheme import Scheme
from tests.quantization.example_weights import grouped


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize("symmetric", [True, False])
def test_no_weight_is_further_than_half_a_step(bits: int, symmetric: bool) -> None:
    weight, scheme = grouped(16, 3), Scheme(bits, 32, "rtn", symmetric, "float32")
    grid = extreme_grid(weight, scheme)
    codes = grid.codes(weight, scheme.levels)
    assert 0 == codes.min() < codes.max() <= scheme.levels - 1
    steps = np.abs(weight - grid.values(codes)) / np.abs(grid.scales)[..., None]
    # At the ends of the range: the negative of the largest value has no code if symmetric, and the
    # rounding of the zero point moves the range otherwise.
    assert steps.max() <= 1 + 1e-4
    assert np.quantile(steps, 0.9) <= 0.5


def test_a_symmetric_grid_has_the_largest_magnitude_as_code_zero() -> None:
    weight = np.array([[[-1.0, 0.5, 0.25, 3.0]]], np.float32)
    grid = extreme_grid(weight, Scheme(2, 4, "rtn", symmetric=True))
    assert grid.scales.tolist() == [[-1.5]]
    assert grid.codes(weight, 4).tolist() == [[[3, 2, 2, 0]]]
    assert grid.rounded(weight, 4).tolist() == [[[-1.5, 0.0, 0.0, 3.0]]]


def test_an_asymmetric_grid_has_zero_and_both_ends() -> None:
    weight = np.array([[[1.0, 3.0], [0.0, 0.0]]], np.float32)
    grid = extreme_grid(weight, Scheme(2, 4, "rtn"))
    assert grid.scales.tolist() == [[1.0, 0.0]]
    assert grid.zeros.tolist() == [[0.0, 0.0]]
    assert grid.rounded(weight, 4).tolist() == weight.tolist()


def test_scales_are_rounded_to_the_dtype_of_the_file() -> None:
    scheme = Scheme(scale_dtype="float16")
    scales = np.array([1 / 3, 1e6, -1e6], np.float32)
    assert representable(scales, scheme).tolist() == [np.float32(np.float16(1 / 3)), 65504, -65504]
    assert representable(scales, Scheme(scale_dtype="float32")).tolist() == scales.tolist()


def test_codes_are_limited() -> None:
    grid = Grid(np.array([[1.0]], np.float32), np.array([[2.0]], np.float32))
    assert grid.codes(np.array([[[-9.0, 9.0]]], np.float32), 4).tolist() == [[[0, 3]]]


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


def test_groups_do_not_depend_on_each_other() -> None:
    """A group that ends early leaves the others in place."""
    weight, scheme = by_element(grouped(64, 3)), Scheme(2, 32, "hqq")
    whole = half_quadratic_grid(weight, scheme)
    rows = [half_quadratic_grid(weight[i : i + 1], scheme) for i in range(len(weight))]
    assert np.array_equal(np.concatenate([row.scales for row in rows]), whole.scales)
    assert np.array_equal(np.concatenate([row.zeros for row in rows]), whole.zeros)


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


@pytest.mark.parametrize("size", [2, 4, 8, 12, 24, 32, 40, 128, 136])
def test_the_layout_does_not_change_a_bit(size: int) -> None:
    weight, scheme = grouped(16, 5, size), Scheme(4, size, "hqq")
    moved = by_element(weight)
    assert np.array_equal(moved, weight)
    assert (moved.strides[-1] > moved.strides[0]) == (size <= 128)
    assert np.array_equal(_total(moved), weight.sum(-1))
    for grid_of in (extreme_grid, half_quadratic_grid):
        expected, grid = grid_of(weight, scheme), grid_of(moved, scheme)
        assert np.array_equal(grid.scales, expected.scales)
        assert np.array_equal(grid.zeros, expected.zeros)
