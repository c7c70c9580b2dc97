"""GPTQ: the error of the product falls, though that of the weight rises."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.quantization.weights.gptq import DAMPING, Corrections, corrected_codes
from coreai_onnx.quantization.weights.grids import Grid, extreme_grid
from coreai_onnx.quantization.weights.scheme import Scheme
from tests.quantization.example_weights import correlated_inputs, grouped


def plain_gptq(weight: np.ndarray, moments: np.ndarray, grid: Grid, levels: int) -> np.ndarray:
    """Return the rounded weight, column by column, with the update of equation 2 of the paper."""
    rows, groups, size = weight.shape
    left = weight.reshape(rows, -1).astype(np.float64)
    done = np.zeros_like(left)
    hessian = moments.astype(np.float64)
    hessian[np.diag_indices_from(hessian)] += DAMPING * np.diagonal(hessian).mean()
    inverse = np.linalg.inv(hessian)
    for column in range(groups * size):
        own = slice(column // size, column // size + 1)
        part = Grid(grid.scales[:, own], grid.zeros[:, own])
        one = left[:, column].astype(np.float32)[:, None, None]
        done[:, column] = part.rounded(one, levels)[:, 0, 0]
        error = (left[:, column] - done[:, column]) / inverse[column, column]
        left -= error[:, None] * inverse[column]
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse[column, :] = inverse[:, column] = 0
        inverse[column, column] = 1
    return done


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(("groups", "size"), [(4, 16), (1, 96), (2, 160)])
def test_the_error_of_the_product_falls(groups: int, size: int, act_order: bool) -> None:
    weight, scheme = grouped(24, groups, size), Scheme(4, size, "gptq")
    x = correlated_inputs(600, groups * size)
    corrections = Corrections(x.T @ x, act_order=act_order)
    codes, grid = corrected_codes(weight, scheme, corrections, extreme_grid)
    assert 0 <= codes.min() <= codes.max() <= 15
    plain = extreme_grid(weight, scheme).rounded(weight, 16)
    errors = [
        np.square(x @ (weight - rounded).reshape(24, -1).T).sum()
        for rounded in (grid.values(codes), plain)
    ]
    assert errors[0] < 0.7 * errors[1]


def test_it_is_the_algorithm_of_the_paper() -> None:
    weight, scheme, x = grouped(8, 1, 48), Scheme(4, 48, "gptq"), correlated_inputs(200, 48)
    moments = x.T @ x
    codes, grid = corrected_codes(weight, scheme, Corrections(moments), extreme_grid)
    expected = plain_gptq(weight, moments, grid, 16)
    same = np.isclose(grid.values(codes).reshape(8, 48), expected, rtol=1e-4)
    assert same.mean() > 0.97  # ties may round in the other direction


def test_inputs_of_zeros_change_nothing() -> None:
    weight, scheme = grouped(4, 2, 16), Scheme(4, 16, "gptq")
    for act_order in (False, True):
        corrections = Corrections(np.zeros((32, 32), np.float32), act_order=act_order)
        codes, grid = corrected_codes(weight, scheme, corrections, extreme_grid)
        assert (grid.values(codes) == extreme_grid(weight, scheme).rounded(weight, 16)).all()
