"""Tests of weights as codes, with scales that activations choose."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composites.few_bit_weights import dequantized
from coreai_onnx.errors import QuantizationError
from coreai_onnx.model.weight_formats import PARTS
from coreai_onnx.quantization.weights import packed_weights
from coreai_onnx.quantization.weights.grids import half_quadratic_grid
from coreai_onnx.quantization.weights.packed_weights import (
    PackedWeight,
    _in_threads,
    decibels,
    pack_weight,
    scaled_by_activations,
)
from coreai_onnx.quantization.weights.products import Products
from coreai_onnx.quantization.weights.scheme import METHODS, Scheme
from tests.quantization.example_weights import (
    correlated_inputs,
    experts,
    grouped,
    heavy_tailed,
    weight_of,
)

LEAST = {8: 40.0, 4: 17.0, 3: 11.0, 2: 6.0}
"""Decibels that round-to-nearest reaches on Gaussian weights, about 6 per bit."""


def values_of(packed: PackedWeight) -> np.ndarray:
    """Return the weight by the reference of the composite."""
    given = (packed.codes, packed.scales, packed.zero_points, packed.palette)
    tensors = [None if array is None else torch.from_numpy(array) for array in given]
    groups = dequantized(
        [*tensors, *[None] * (len(PARTS) - len(tensors))], packed.scheme.bits, 0, torch.float32
    )
    values = groups.flatten(-2).numpy()
    return values if packed.divisors is None else values / packed.divisors


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_the_values_are_near_the_weight(bits: int, method: str) -> None:
    weight, x = heavy_tailed(40, 64), correlated_inputs(300, 64)
    scheme = Scheme(bits, 16, method)
    packed = pack_weight(weight_of(weight), scheme, x.T @ x)
    values = values_of(packed)
    assert packed.codes.shape == (40, 4, 2 * bits)
    assert packed.scales.dtype == np.float16
    assert (packed.zero_points is None) == scheme.is_symmetric
    assert packed.sqnr == pytest.approx(sqnr(weight, values), abs=0.02)
    assert packed.output_sqnr == pytest.approx(sqnr(x @ weight.T, x @ values.T), abs=0.02)
    quality = packed.output_sqnr if method in ("gptq", "awq") else packed.sqnr
    assert quality > LEAST[bits]


def sqnr(exact: np.ndarray, rounded: np.ndarray) -> float:
    return float(10 * np.log10(np.square(exact).sum() / np.square(exact - rounded).sum()))


def test_methods_are_better_than_rounding() -> None:
    weight, x = heavy_tailed(64, 128), correlated_inputs(500, 128)
    packed = {m: pack_weight(weight_of(weight), Scheme(4, 32, m), x.T @ x) for m in METHODS}
    assert packed["hqq"].sqnr > packed["rtn"].sqnr
    assert packed["palette"].sqnr > pack_weight(weight_of(weight), Scheme(4, 32, "rtn", True)).sqnr
    best = [packed[m].output_sqnr or 0 for m in ("gptq", "awq")]
    assert min(best) > (packed["hqq"].output_sqnr or 0) > (packed["rtn"].output_sqnr or 0)


@pytest.mark.parametrize("method", ["rtn", "palette", "gptq"])
def test_rows_and_storage_do_not_matter(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = heavy_tailed(40, 64), correlated_inputs(300, 64)
    scheme = Scheme(4, 32, method)
    whole = pack_weight(weight_of(weight), scheme, x.T @ x)
    monkeypatch.setattr(packed_weights, "CHUNK", 64 * 7)
    for by_rows in (True, False):
        part = pack_weight(weight_of(weight, by_rows=by_rows), scheme, x.T @ x)
        assert np.array_equal(part.codes, whole.codes)
        assert np.array_equal(part.scales, whole.scales)


@pytest.mark.parametrize("method", ["rtn", "hqq", "gptq"])
@pytest.mark.parametrize("by_rows", [True, False])
def test_each_expert_is_quantized_as_a_weight_of_its_own(method: str, by_rows: bool) -> None:
    weights = heavy_tailed(60, 64).reshape(3, 20, 64)
    inputs = [correlated_inputs(300, 64)[100 * i : 100 * (i + 1)] for i in range(3)]
    moments = np.stack([x.T @ x for x in inputs])
    (weight,) = Products(experts(weights, by_rows=by_rows)).weights()
    packed = pack_weight(weight, Scheme(4, 32, method), moments)
    assert packed.codes.shape == (3, 20, 2, 16)
    assert packed.scales.shape == packed.zero_points.shape == (3, 20, 2)
    for i, matrix in enumerate(weights):
        alone = pack_weight(weight_of(matrix), Scheme(4, 32, method), moments[i])
        assert np.array_equal(packed.codes[i], alone.codes)
        assert np.array_equal(packed.scales[i], alone.scales)
        assert np.array_equal(packed.zero_points[i], alone.zero_points)
    values = values_of(packed)
    assert packed.sqnr == pytest.approx(sqnr(weights, values), abs=0.02)
    exact, rounded = (
        np.stack([x @ w.T for x, w in zip(inputs, w3, strict=True)]) for w3 in (weights, values)
    )
    assert packed.output_sqnr == pytest.approx(sqnr(exact, rounded), abs=0.02)


def test_experts_share_a_palette_and_divisors() -> None:
    weights, x = heavy_tailed(60, 64).reshape(3, 20, 64), correlated_inputs(300, 64)
    (weight,) = Products(experts(weights)).weights()
    moments = np.broadcast_to(x.T @ x, (3, 64, 64))
    palette, awq, plain = (
        pack_weight(weight, Scheme(4, 16, method), moments) for method in ("palette", "awq", "hqq")
    )
    assert palette.palette.shape == (16,)
    assert sqnr(weights, values_of(palette)) > 17
    assert awq.divisors.shape == (64,)
    assert awq.output_sqnr > plain.output_sqnr


def test_an_expert_without_calibration_data_is_quantized_by_hqq() -> None:
    weights, x = heavy_tailed(40, 64).reshape(2, 20, 64), correlated_inputs(300, 64)
    (weight,) = Products(experts(weights)).weights()
    moments = np.stack([x.T @ x, np.zeros((64, 64), np.float32)])
    packed = pack_weight(weight, Scheme(4, 32, "gptq"), moments)
    plain = pack_weight(weight, Scheme(4, 32, "hqq"))
    assert np.array_equal(packed.codes[1], plain.codes[1])
    assert not np.array_equal(packed.codes[0], plain.codes[0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_dtypes_are_rounded_as_float32(dtype) -> None:
    weight = heavy_tailed(8, 32).astype(dtype)
    packed = pack_weight(weight_of(weight), Scheme(8, 32, "rtn"))
    assert sqnr(weight.astype(np.float32), values_of(packed)) > 40
    same = pack_weight(weight_of(weight.astype(np.float32)), Scheme(8, 32, "rtn"))
    assert np.array_equal(packed.codes, same.codes)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_an_error(bad: float) -> None:
    weight = heavy_tailed(8, 32)
    weight[5, 3] = bad
    for method in ("rtn", "palette"):
        with pytest.raises(QuantizationError, match=r"layer: the weight 'layer.weight' has values"):
            pack_weight(weight_of(weight), Scheme(4, 32, method))


def test_whole_rows_and_zeros() -> None:
    packed = pack_weight(weight_of(np.zeros((4, 48), np.float32)), Scheme(4, 0))
    assert packed.codes.shape == (4, 1, 24)
    assert np.array_equal(values_of(packed), np.zeros((4, 48), np.float32))
    assert packed.sqnr == float("inf")


def test_scales_beyond_float16_are_limited() -> None:
    weight = weight_of(np.full((2, 32), 1e9, np.float32))
    packed = pack_weight(weight, Scheme(4, 32, "rtn"))
    assert np.isfinite(packed.scales).all()
    wide = pack_weight(weight, Scheme(4, 32, "rtn", scale_dtype="float32"))
    assert np.abs(values_of(wide) / 1e9 - 1).max() < 1e-6


def test_the_size_counts_all_parts() -> None:
    packed = pack_weight(weight_of(heavy_tailed(8, 64)), Scheme(4, 32))
    assert packed.nbytes == 8 * 32 + 8 * 2 * 2 + 8 * 2
    assert dataclasses.replace(packed, zero_points=None).nbytes == packed.nbytes - 16
    assert decibels(0, 1) == -decibels(1, 0) == float("-inf")
    assert isinstance(ir.tensor(packed.codes), ir.Tensor)


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


@pytest.mark.parametrize("method", METHODS)
def test_workers_do_not_change_the_result(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, scheme = weight_of(heavy_tailed(40, 64)), Scheme(4, 32, method)
    inputs = correlated_inputs(100, 64)
    monkeypatch.setattr(packed_weights, "CHUNK", 64 * 3)
    threads: set[int] = set()
    part = packed_weights.pack_codes

    def recorded(*args: Any) -> np.ndarray:
        threads.add(threading.get_ident())
        return part(*args)

    monkeypatch.setattr(packed_weights, "pack_codes", recorded)
    one = pack_weight(weight, scheme, inputs.T @ inputs, workers=1)
    assert threads == {threading.get_ident()}
    several = pack_weight(weight, scheme, inputs.T @ inputs, workers=4)
    assert len(threads) > 1
    assert one.parts.keys() == several.parts.keys()
    for name, part_of_one in one.parts.items():
        assert part_of_one.tobytes() == several.parts[name].tobytes()
    assert (one.sqnr, one.output_sqnr) == (several.sqnr, several.output_sqnr)


def test_an_error_in_a_thread_ends_the_others() -> None:
    started = []

    def work(start: int) -> int:
        started.append(start)
        if start == 5:
            raise QuantizationError("five")
        return start

    results = _in_threads(2, work, range(100))
    with pytest.raises(QuantizationError, match="five"):
        list(results)
    assert max(started) < 10
    assert list(_in_threads(2, lambda start: start, range(7))) == list(range(7))
