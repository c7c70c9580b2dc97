"""Sines and norms in the form that WebGPU computes exactly, here computed on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from coreai_onnx.passes.layout.exact_on_webgpu import (
    centered_norms,
    exponentials_by_polynomials,
    logarithms_by_polynomials,
    powers_by_products,
    sines_by_polynomials,
)
from coreai_onnx.passes.order import ORDER
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

BOTH = "main ({0} x) => ({0} y, {0} z) {{ y = Sin (x)  z = Cos (x) }}"
FUNCTIONS = {"Sin": np.sin, "Cos": np.cos}
LAYER = """main (float[n, 64] x, float[64] s, float[64] b) => (float[n, 64] y) {{
  y = LayerNormalization <axis = {axis}, epsilon = 1e-5> (x, s, b)
}}"""
INSTANCE = """main (float[n, 3, h, w] x, float[3] s, float[3] b) => (float[n, 3, h, w] y) {
  y = InstanceNormalization <epsilon = 1e-5> (x, s, b)
}"""
STATISTICS = """main (float[n, 64] x, float[64] s) => (float[n, 64] y, float[n, 1] m) {
  y, m = LayerNormalization <axis = -1> (x, s)
}"""


def sines(x: np.ndarray, kind: str) -> list[np.ndarray]:
    """The sines and cosines by the rewritten model."""
    model = parse(BOTH.format(kind))
    assert run_passes(model, [*ORDER, sines_by_polynomials]).counts["sines_by_polynomials"] == 2
    assert not {"Sin", "Cos"} & {node.op_type for node in model.graph}
    return run(model, {"x": x})


@pytest.mark.parametrize("kind", ["float[n]", "float[m, n]", "float[400011]"])
def test_sines_up_to_a_hundred_thousand(kind: str) -> None:
    random = np.random.default_rng(0)
    spread = [random.uniform(-top, top, 100_000) for top in (4, 1e3, 1e5)]
    zeros = np.arange(-50_005, 50_006) * (np.pi / 2)
    x = np.concatenate([*spread, zeros]).astype(np.float32)
    assert x.size == 400_011
    given = x.reshape(-1, 3) if kind == "float[m, n]" else x
    for actual, function in zip(sines(given, kind), FUNCTIONS.values(), strict=True):
        exact = function(x.astype(np.float64)).reshape(actual.shape)
        assert np.abs(actual - exact).max() < 1.8e-7


def test_sines_of_huge_numbers_are_bounded() -> None:
    x = np.geomspace(1e6, 3e38, 1001, dtype=np.float32)
    assert np.abs(sines(np.concatenate([x, -x]), "float[n]")).max() <= 1


def test_sines_of_special_numbers() -> None:
    sine, cosine = sines(np.array([np.inf, -np.inf, np.nan], np.float32), "float[n]")
    assert np.isnan([sine, cosine]).all()
    small = np.array([0, 1e-45, -1e-45, 1e-39, 1e-30, -1e-8], np.float32)
    sine, cosine = sines(small, "float[n]")
    np.testing.assert_array_equal(sine, small)
    np.testing.assert_array_equal(cosine, np.ones(6, np.float32))


def test_sines_in_float16_are_rounded_once() -> None:
    x = np.linspace(-2000, 2000, 10_001).astype(np.float16)
    for actual, function in zip(sines(x, "float16[n]"), FUNCTIONS.values(), strict=True):
        assert actual.dtype == np.float16
        exact = function(x.astype(np.float64))
        # Half a unit in the last place of numbers below 1.
        assert np.abs(actual.astype(np.float64) - exact).max() < 2**-12 + 2e-7


def test_sine_and_cosine_share_the_reduction() -> None:
    model = parse(BOTH.format("float[n]"))
    run_passes(model, [*ORDER, sines_by_polynomials])
    # 3 nodes for the multiple of π, 7 for the remainder, 1 for its square and 5 for the sign; then
    # 9 and 10 for the polynomials and 1 for the sign of each.
    assert len(model.graph) == 16 + 10 + 11


def test_sines_in_float64_stay() -> None:
    text = "main (double[n] x) => (double[n] y) { y = Sin (x) }"
    leaves(text, sines_by_polynomials, "the dtype is not float32 or float16")


ROW, MATRIX, CHANNELS = (64,), (5, 64), (3,)


@pytest.mark.parametrize(
    ("text", "size", "width"),
    [
        (LAYER.format(axis=-1), MATRIX, ROW),
        (LAYER.format(axis=1), MATRIX, ROW),
        (LAYER.format(axis=0).replace("float[64]", "float[n, 64]"), MATRIX, MATRIX),
        (INSTANCE, (2, 3, 4, 5), CHANNELS),
    ],
)
def test_centered_norms(text: str, size: tuple[int, ...], width: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    sizes = {"x": size, "s": width, "b": width}
    feeds = {name: random.standard_normal(s).astype(np.float32) for name, s in sizes.items()}
    before, after = parse(text), parse(text)
    assert run_passes(after, [centered_norms]).total == 1
    assert [node.op_type for node in after.graph][:2] == ["ReduceMean", "Sub"]
    assert_close(run(after, feeds), run(before, feeds))
    assert run_passes(after, [*ORDER, centered_norms]).counts["centered_norms"] == 0


def test_a_centered_variance_does_not_cancel() -> None:
    # The formula of WebGPU, on the input of the norm before and after.
    rows = np.sin(0.01 * np.arange(6400)).reshape(100, 64).astype(np.float32) + np.float32(100)
    model = parse(LAYER.format(axis=-1))
    run_passes(model, [centered_norms])
    difference = next(node for node in model.graph if node.op_type == "Sub").outputs[0]
    model.graph.outputs.append(difference)
    ones = np.ones(64, np.float32)
    centered = run(model, {"x": rows, "s": ones, "b": 0 * ones})[1]
    exact = rows.astype(np.float64).var(-1)
    errors = [
        np.abs(((x * x).mean(-1) - x.mean(-1) ** 2) / exact - 1).max() for x in (rows, centered)
    ]
    assert errors[0] > 1e-2
    assert errors[1] < 1e-5


def test_norms_that_stay() -> None:
    leaves(STATISTICS, centered_norms, "its statistics are results")
    wide = LAYER.format(axis=-1).replace("float[", "double[")
    leaves(wide, centered_norms, "the dtype is not float32 or float16")
    unknown = """main (float[n, 3, h] w, float[3] s) => (float[n, 3, h] y) {
      u = Neg (w)  y = InstanceNormalization (u, s, s)
    }"""
    leaves(unknown, centered_norms, "the dtype is not float32 or float16")
    ranks = "main (float x, float s) => (float y) { y = LayerNormalization <axis = 1> (x, s) }"
    leaves(ranks.replace("float", "float[]"), centered_norms, "the normalized axes are not known")


ULPS = {"Exp": 1, "Sigmoid": 2.5, "Tanh": 1.6, "Softplus": 3.6, "Log": 2}


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Exp": np.exp,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "Log": np.log,
}


def exponentials(op: str, x: np.ndarray) -> np.ndarray:
    model = parse(f"main (float[n] x) => (float[n] y) {{ y = {op} (x) }}")
    passes = [exponentials_by_polynomials, logarithms_by_polynomials]
    counts = run_passes(model, [*ORDER, *passes]).counts
    # The exponential of a Softplus is rewritten in the next round.
    assert sum(counts[one.__name__] for one in passes) == 1 + (op == "Softplus")
    assert not {*ULPS} & {node.op_type for node in model.graph}
    return run(model, {"x": x})[0]


@pytest.mark.parametrize("op", ULPS)
def test_units_in_the_last_place(op: str) -> None:
    small = np.geomspace(1e-30, 1, 10_000)
    numbers = [np.linspace(-87, 88.5, 400_001), small, -small]
    if op == "Log":  # down to the least number, and closely around 1
        numbers = [np.geomspace(1e-45, 3.4e38, 400_001), np.linspace(0.5, 2, 400_001)]
    x = np.concatenate(numbers).astype(np.float32)
    exact = EXACT[op](x.astype(np.longdouble))
    unit = np.spacing(np.abs(exact).astype(np.float32))
    assert (np.abs(exponentials(op, x) - exact) / unit).max() < ULPS[op]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("Exp", [1, np.inf, 0, np.nan, np.inf, 0]),
        ("Sigmoid", [0.5, 1, 0, np.nan, 1, 0]),
        ("Tanh", [0, 1, -1, np.nan, 1, -1]),
        ("Softplus", [np.log(2), np.inf, 0, np.nan, 1e6, 0]),
        ("Log", [-np.inf, np.inf, np.nan, np.nan, np.log(1e6), np.nan]),
    ],
)
def test_special_numbers(op: str, expected: list[float]) -> None:
    x = np.array([0, np.inf, -np.inf, np.nan, 1e6, -1e6], np.float32)
    np.testing.assert_array_equal(exponentials(op, x), np.array(expected, np.float32))


def test_exponentials_that_stay() -> None:
    leaves(
        "main (double[n] x) => (double[n] y) { y = Exp (x) }",
        exponentials_by_polynomials,
        "the dtype is not float32",
    )


@pytest.mark.parametrize("exponent", [2, 3])
def test_a_power_is_a_product(exponent: int) -> None:
    text = (
        f"main (float[n] x) => (float[n] y) {{ e = Constant <value_float = {exponent}.0> () "
        "y = Pow (x, e) }"
    )
    model = parse(text)
    run_passes(model, [*ORDER, powers_by_products])
    assert {node.op_type for node in model.graph} == {"Mul"}
    x = np.linspace(-3, 3, 100, dtype=np.float32)
    assert_close(run(model, {"x": x})[0], x**exponent)


def test_other_powers_stay() -> None:
    leaves(
        "main (float[n] x, float[n] e) => (float[n] y) { y = Pow (x, e) }",
        powers_by_products,
        "it is not a square or cube of float32",
    )
    leaves(
        "main (double[n] x) => (double[n] y) { y = Log (x) }",
        logarithms_by_polynomials,
        "the dtype is not float32",
    )
