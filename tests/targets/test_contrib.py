"""Ops of com.microsoft: the releases that have them, and their conversion to 16 bits."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from coreai_onnx.model.checks.violations import violations
from coreai_onnx.program import OnnxProgram
from coreai_onnx.targets.contrib import _FLOAT32_OUTPUTS, computes_half, contrib_needs
from tests.support.small_models import parse
from tests.support.tolerances import assert_close

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


CODES = RANDOM.integers(0, 256, (8, 1, 16), np.uint8)
X = {"x": floats(2, 4, 32)}
SAME = "float[2, 4, 32]"
CALLS: dict[str, tuple[str, str, dict[str, np.ndarray]]] = {
    **{op: (f"{SAME} x", f"{op}(x)", X) for op in ("Gelu", "FastGelu", "QuickGelu")},
    "BiasGelu": (f"{SAME} x, float[32] b", "BiasGelu(x, b)", X | {"b": floats(32)}),
    "FusedMatMul": (f"{SAME} x, float[32, 32] w", "FusedMatMul(x, w)", X | {"w": floats(32, 32)}),
    **{
        op: (f"{SAME} x, {SAME} s, float[32] g", f"{op}(x, s, g)",
             X | {"s": floats(2, 4, 32), "g": floats(32)})
        for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    },
    "RotaryEmbedding": (
        f"{SAME} x, int64[2, 4] p, float[9, 8] c, float[9, 8] s",
        "RotaryEmbedding<num_heads = 2>(x, p, c, s)",
        X | {"p": np.arange(8).reshape(2, 4), "c": floats(9, 8), "s": floats(9, 8)},
    ),
    "MultiHeadAttention": (
        f"{SAME} x, {SAME} k, {SAME} v", "MultiHeadAttention<num_heads = 2>(x, k, v)",
        X | {"k": floats(2, 4, 32), "v": floats(2, 4, 32)},
    ),
    "GroupQueryAttention": (
        f"{SAME} x, float[2, 4, 16] k, float[2, 4, 16] v, int32[2] last, int32 total",
        "GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(x, k, v, , , last, total)",
        X | {"k": floats(2, 4, 16), "v": floats(2, 4, 16), "last": np.array([3, 3], np.int32),
             "total": np.array(4, np.int32)},
    ),
    "MatMulNBits": (
        f"{SAME} x, uint8[8, 1, 16] c, float[8] s, float[8] b",
        "MatMulNBits<K = 32, N = 8, bits = 4, block_size = 32>(x, c, s, , , b)",
        X | {"c": CODES, "s": floats(8), "b": floats(8)},
    ),
    "GatherBlockQuantized": (
        "int64[3] i, uint8[8, 16] c, float[8, 1] s",
        "GatherBlockQuantized<bits = 4, block_size = 32>(c, i, s)",
        {"i": np.array([1, 7, 0]), "c": CODES[:, 0], "s": floats(8, 1)},
    ),
}  # fmt: skip


def program(op: str) -> tuple[OnnxProgram, dict[str, np.ndarray]]:
    inputs, call, feeds = CALLS[op]
    shape = {"MatMulNBits": "float[2, 4, 8]", "GatherBlockQuantized": "float[3, 32]"}.get(op, SAME)
    model = parse(f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    agraph ({inputs}) => ({shape} y) {{ y = com.microsoft.{call} }}""")
    return OnnxProgram({"main": model}), feeds


@pytest.mark.parametrize("op", CALLS)
def test_ops_compute_in_float16(op: str) -> None:
    one, feeds = program(op)
    expected = one.run(**feeds)[0]
    one.convert_dtype("float16")
    assert violations(one.model) == []
    assert [node.op_type for node in one.model.graph] == [op]
    assert one.dtype_reports["main"].kept == ()
    half = {n: x.astype(np.float16) if x.dtype == np.float32 else x for n, x in feeds.items()}
    assert_close(one.run(**half)[0], expected.astype(np.float16), exception="half_model")


def test_every_op_is_run() -> None:
    assert CALLS.keys() == _FLOAT32_OUTPUTS.keys()


NORM = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    agraph (float[2, 32] x, float[2, 32] s, float[32] g) => (float[2, 32] y, float[2, 1] mean)
    <float[2, 32] n, float[2, 1] deviation> {
        n, mean, deviation = com.microsoft.SkipLayerNormalization(x, s, g)
        y = Neg(n)
    }"""
FEEDS = {"x": floats(2, 32), "s": floats(2, 32), "g": floats(32)}


def test_statistics_keep_float32() -> None:
    one = OnnxProgram({"main": parse(NORM)})
    expected = one.run(**FEEDS)
    one.convert_dtype("float16", keep_io=True)
    assert violations(one.model) == []
    report = one.dtype_reports["main"]
    assert (report.converted, report.kept) == (2, ())
    types = {v.name: v.dtype for node in one.model.graph for v in node.outputs}
    assert (types["n"], types["mean"]) == (ir.DataType.FLOAT16, ir.DataType.FLOAT)
    for got, wanted in zip(one.run(**FEEDS), expected, strict=True):
        assert_close(got.astype(np.float16), wanted.astype(np.float16), exception="half_model")


def test_others_keep_float32() -> None:
    one = OnnxProgram({"main": parse(NORM.replace("SkipLayerNormalization", "Another"))})
    (kept,) = one.convert_dtype("float16").dtype_reports["main"].kept
    assert kept.reason == "Another of com.microsoft keeps float32"
    gelu = ir.node("Gelu", [ir.Value(name="x")], domain="com.microsoft")
    assert computes_half(gelu, ir.DataType.FLOAT16)
    assert not computes_half(gelu, ir.DataType.BFLOAT16)
    assert not computes_half(ir.node("Gelu", gelu.inputs, domain="other"), ir.DataType.FLOAT16)


def test_scales_of_caches_keep_float32() -> None:
    values = [ir.Value(name=f"v{i}") for i in range(14)]
    node = ir.node("GroupQueryAttention", values, domain="com.microsoft")
    assert not computes_half(node, ir.DataType.FLOAT16)
    for index in (12, 13):
        node.replace_input_with(index, None)
    assert computes_half(node, ir.DataType.FLOAT16)


@pytest.mark.parametrize(
    ("call", "needed"),
    [
        ("Neg (x)", ""),
        ("com.microsoft.Gelu (x)", "1.21"),
        ("com.microsoft.GroupQueryAttention (x, x, x, , , x, x)", "1.21"),
        ("com.microsoft.GroupQueryAttention (x, x, x, , , x, x, , , , x)", "1.23"),
        ("com.microsoft.GroupQueryAttention <causal = 0> (x, x, x, , , x, x)", "1.30"),
        ("com.microsoft.MoE (x, x, x, , x)", "1.23"),
        ("com.microsoft.QMoE (x, x, x, x, , x, x)", "1.25"),
        ("com.microsoft.QMoE <expert_weight_bits = 2> (x, x, x, x, , x, x)", "1.27"),
        ("com.microsoft.QMoE <accuracy_level = 4> (x, x, x, x, , x, x)", "1.31"),
        ("com.microsoft.LinearAttention (x, x, x)", "1.25"),
    ],
)
def test_ops_of_onnxruntime_need_a_release(call: str, needed: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        main (float[2] x) => (float[2] y) {{ g = com.microsoft.Gelu (x)  y = {call} }}"""
    if needed == "":
        text = text.replace("g = com.microsoft.Gelu (x)", "g = Abs (x)")
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert contrib_needs(model) == needed
    summary = OnnxProgram({"main": model}).summary()
    assert (f"needs onnxruntime {needed} or later" in summary) == bool(needed)
