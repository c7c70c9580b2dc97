"""Activation-aware scales lower the error of the product."""

from __future__ import annotations

import numpy as np

from coreai_onnx.quantization.weights.activation_scales import scaled_by_activations
from coreai_onnx.quantization.weights.half_quadratic import half_quadratic_grid
from coreai_onnx.quantization.weights.scheme import Scheme
from tests.quantization.example_weights import correlated_inputs, grouped


def test_columns_of_large_inputs_are_scaled_up() -> None:
    weight, x, scheme = grouped(48, 4, 16), correlated_inputs(500, 64), Scheme(3, 16, "awq")
    factors = scaled_by_activations(weight, x.T @ x, scheme)
    assert factors.dtype == np.float32
    assert np.corrcoef(factors, np.sqrt(np.square(x).mean(0)))[0, 1] > 0.8
    grouped_factors = factors.reshape(4, 16)
    errors = []
    for f in (grouped_factors, np.ones_like(grouped_factors)):
        scaled = weight * f
        rounded = half_quadratic_grid(scaled, scheme).rounded(scaled, scheme.levels) / f
        errors.append(np.square(x @ (weight - rounded).reshape(48, -1).T).sum())
    assert errors[0] < 0.8 * errors[1]


def test_equal_inputs_need_no_scales() -> None:
    weight = grouped(8, 2, 16)
    assert (scaled_by_activations(weight, np.eye(32), Scheme(4, 16, "awq")) == 1).all()
    assert (scaled_by_activations(weight, np.zeros((32, 32)), Scheme(4, 16, "awq")) == 1).all()
