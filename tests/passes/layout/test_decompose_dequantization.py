from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.layout.decompose_dequantization import decompose_dequantization
from tests.passes.quantized_products import COLUMNS, INT4, ROWS, UINT4, linear
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes, same_numbers
from tests.support.tolerances import assert_close

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)
STATIC = "q = QuantizeLinear (x, t, u)  d = DequantizeLinear (q, t, u)"
WEIGHT = (
    "int8[4, 4] w = {1, -2, 60, 4, 5, -60, 7, 8, 9, 10, 11, -12, 0, 14, 15, 16}, "
    "float[4] s = {0.1, 0.02, 3.0, 0.4}, int8[4] z = {0, 0, 0, 0}, float t = {0.03}, uint8 u = {128}"
)


def static(ops: str, axis: int) -> str:
    return (
        f"main (float[n, 4] x) => (float[n, 4] y) <{WEIGHT}> {{ {STATIC}  "
        f"v = DequantizeLinear <axis = {axis}> (w, s, z)  {ops} }}"
    )


def test_a_weight_alone() -> None:
    """onnxruntime would round the other factor to 8 bits."""
    text = """main (float[n, 4] x) => (float[n, 2] y) <int8[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] s = {0.5, 2}, int8[2] z = {1, 0}> {
      v = DequantizeLinear <axis = 1> (w, s, z)  y = MatMul (x, v)
    }"""
    fuses(
        text,
        decompose_dequantization,
        1,
        """main (float[n, 4] x) => (float[n, 2] y) <int8[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[1, 2] z_v = {1, 0}, float[1, 2] s_v = {0.5, 2}> {
          v_cast = Cast <to = 1> (w)  v_sub = Sub (v_cast, z_v)  v = Mul (v_sub, s_v)  y = MatMul (x, v)
        }""",
    )
    same_numbers(text, decompose_dequantization, {"x": X})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("scale", ["float s = {0.01}", "float[16] s = {@}"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_stock_session_is_exact(dtype: str, scale: str, transposed: bool) -> None:
    numbers = ", ".join(str(n) for n in RNG.integers(0 if dtype == "uint8" else -7, 8, 512))
    steps = ", ".join(f"{n:.4f}" for n in RNG.uniform(0.01, 0.2, 16))
    shape = "16, 32" if transposed else "32, 16"
    ops = f"v = DequantizeLinear <axis = {int(not transposed)}> (w, s)  "
    turn = "v2 = Transpose <perm = [1, 0]> (v)  "
    ops += f"{turn} y = MatMul (x, v2)" if transposed else "y = MatMul (x, v)"
    text = (
        f"main (float[2, n, 32] x) => (float[2, n, 16] y) <{dtype}[{shape}] w = {{{numbers}}}, "
        f"{scale.replace('@', steps)}> {{ {ops} }}"
    )
    model, feeds = parse(text), {"x": RNG.normal(size=(2, 3, 32)).astype(np.float32)}
    (wanted,) = run(model, feeds)
    run_passes(model, [decompose_dequantization])
    assert_close(run(model, feeds, stock=True)[0], wanted)


@pytest.mark.parametrize("kind", [INT4, UINT4, np.int8])
@pytest.mark.parametrize("ops", [ROWS, COLUMNS])
@pytest.mark.parametrize("zeros", [False, True])
def test_blocks(kind: type, ops: tuple[str, ...], zeros: bool) -> None:
    model = linear(kind, 16, ops, zeros=zeros)
    feeds = {"x": RNG.normal(size=(2, 3, 64)).astype(np.float32)}
    (wanted,) = run(model, feeds)
    assert run_passes(model, [decompose_dequantization]).total == 1
    assert "DequantizeLinear" not in {node.op_type for node in model.graph}
    assert_close(run(model, feeds, stock=True)[0], wanted)
    assert run_passes(model, [decompose_dequantization]).total == 0


def test_a_shorter_last_block_stays() -> None:
    model = linear(ml_dtypes.int4, 48, COLUMNS, size=(32, 64))
    report = run_passes(model, [decompose_dequantization])
    assert report.total == 0
    assert [m.miss.reason for m in report.near_misses] == ["the last block of an axis is shorter"]


@pytest.mark.parametrize(
    ("ops", "axis"),
    [
        ("y = MatMul (d, v)", 0),
        ("y = Gemm (d, v)", 0),
        ("y = Gemm <transB = 1> (d, v)", 1),
        ("v2 = Transpose <perm = [1, 0]> (v)  y = MatMul (d, v2)", 1),
        ("y = MatMul (v, v)", 1),
    ],
)
def test_scales_of_inputs(ops: str, axis: int) -> None:
    """onnxruntime would take them for those of the outputs."""
    text = static(ops, axis)
    model = parse(text)
    feeds = {"x": RNG.normal(size=(4, 4)).astype(np.float32)}
    (wanted,) = run(model, feeds)
    assert run_passes(model, [decompose_dequantization]).total == 1
    assert_close(run(model, feeds, stock=True)[0], wanted)


def test_scales_of_the_input_channels_of_a_convolution() -> None:
    text = """main (float[1, 2, 3] x) => (float[1, 2, 3] y) <int8[2, 2, 1] w = {10, 20, -30, 40}, float[2] s = {0.1, 2}, float t = {0.03}, uint8 u = {128}, float o = {1.0}> {
      q = QuantizeLinear (x, t, u)  d = DequantizeLinear (q, t, u)
      v = DequantizeLinear <axis = 1> (w, s)  c = Conv (d, v)
      r = QuantizeLinear (c, o, u)  y = DequantizeLinear (r, o, u)
    }"""
    model, feeds = parse(text), {"x": RNG.normal(size=(1, 2, 3)).astype(np.float32)}
    assert run_passes(model, [decompose_dequantization]).total == 1
    same_numbers(text, decompose_dequantization, feeds)


@pytest.mark.parametrize(
    ("ops", "axis"),
    [
        ("y = MatMul (d, v)", 1),
        ("y = Gemm <transB = 1> (d, v)", 0),
        ("v2 = Transpose <perm = [1, 0]> (v)  y = MatMul (d, v2)", 0),
        ("e = Unsqueeze (d, k)  f = MatMul (e, v)  y = Squeeze (f, k)", 1),
        ("i = Cast <to = 7> (d)  y = Gather (v, i)", 0),
    ],
)
def test_what_onnxruntime_computes_as_it_is_stays(ops: str, axis: int) -> None:
    text = static(ops, axis).replace("uint8 u = {128}", "uint8 u = {128}, int64[1] k = {0}")
    if "Gather" in ops:
        text = text.replace("float[n, 4] y", "float[n, 4, 4] y")
    leaves(text, decompose_dequantization)


@pytest.mark.parametrize(
    ("dtype", "ops"),
    [
        ("int32[n, 4]", "y = DequantizeLinear (q, s)"),
        ("int8[n, 4]", "d = DequantizeLinear (q, s)  y = Unsqueeze (d, k)"),
    ],
)
def test_values_that_onnxruntime_cannot_load(dtype: str, ops: str) -> None:
    code = {"int32": 6, "int8": 3}[dtype.partition("[")[0]]
    shape = "1, n, 4" if "Unsqueeze" in ops else "n, 4"
    text = (
        f"main (float[n, 4] x) => (float[{shape}] y) <float s = {{0.5}}, int64[1] k = {{0}}> "
        f"{{ {dtype} q = Cast <to = {code}> (x)  {ops} }}"
    )
    same_numbers(text, decompose_dequantization, {"x": X * 9})


def test_channels_of_activations() -> None:
    text = """main (float[n, 4] x) => (float[n, 4] y) <float[4] s = {0.5, 1, 2, 0.1}, uint8[4] z = {9, 0, 8, 128}, float t = {1.0}, uint8 u = {128}> {
      uint8[n, 4] q = QuantizeLinear <axis = 1> (x, s, z)  d = DequantizeLinear <axis = 1> (q, s, z)
      a = Add (d, d)  p = QuantizeLinear (a, t, u)  y = DequantizeLinear (p, t, u)
    }"""
    same_numbers(text, decompose_dequantization, {"x": X * 9})
    model = parse(text)
    run_passes(model, [decompose_dequantization])
    for stock in (False, True):
        (y,) = run(model, {"x": X}, stock=stock)
        assert y.shape == (3, 4)


@pytest.mark.parametrize(("scale", "count"), [(0.003, 0), (0.009, 1)])
def test_the_bias_of_a_gemm_needs_the_scale_of_the_sums(scale: float, count: int) -> None:
    text = f"""main (float[n, 4] x) => (float[n, 4] y) <{WEIGHT}, float p = {{0.1}}, int8 o = {{0}}, float k = {{{scale}}}, int32[4] i = {{100, -200, 300, 400}}> {{
      {STATIC}  v = DequantizeLinear (w, p, o)  b = DequantizeLinear (i, k)  y = Gemm (d, v, b)
    }}"""
    model, feeds = parse(text), {"x": X}
    (wanted,) = run(model, feeds)
    assert run_passes(model, [decompose_dequantization]).total == count
    assert_close(run(model, feeds, stock=True)[0], wanted)


def test_float8_stays() -> None:
    model = linear(ml_dtypes.float8_e4m3fn, 16, COLUMNS, zeros=False)
    assert run_passes(model, [decompose_dequantization]).total == 0
    assert isinstance(model, ir.Model)


def test_a_transposed_constant_is_a_weight() -> None:
    text = static("y = MatMul (d, v)", 1).replace(
        "v = DequantizeLinear <axis = 1> (w",
        "t0 = Transpose <perm = [1, 0]> (w)  v = DequantizeLinear <axis = 1> (t0",
    )
    leaves(text, decompose_dequantization)
