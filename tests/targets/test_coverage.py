"""The nodes that execution providers have kernels for."""

from __future__ import annotations

import pytest

from coreai_onnx.targets.coverage import SOURCES, TABLES, gaps, has_kernels
from coreai_onnx.targets.providers import CUDA, WEBGPU
from tests.passes.rewriting import parse


def found(body: str, provider: str = WEBGPU, opset: int = 18) -> list[tuple[str, str, bool]]:
    return [(g.node.op_type, g.reason, g.declared) for g in gaps(parse(body, opset), provider)]


def test_a_kernel() -> None:
    text = "main (float[n] x) => (float[n] y) { a = Exp (x)  y = Sin (a) }"
    assert found(text) == []
    assert found(text, CUDA) == []


def test_the_operator() -> None:
    text = "main (float[n, 2] x) => (float[n, 2] y) { y = Hardmax (x) }"
    assert found(text) == [("Hardmax", "no kernel for the operator", False)]


def test_the_opset() -> None:
    text = "main (float[n] x) => (float[n] y) { a = Exp (x)  y = Sin (a) }"
    expected = [("Sin", "no kernel for opset 23, only for 7 to 21", False)]
    assert found(text, opset=23) == expected
    assert found(text, CUDA, opset=23) == expected


def test_the_dtype() -> None:
    text = "main (double[n] x) => (double[n] y) { y = Exp (x) }"
    expected = "no kernel for double (T), only for float, float16"
    assert found(text) == [("Exp", expected, False)]
    assert found(text, CUDA) == []


def test_a_loop_that_collects() -> None:
    text = """main (int64 m, bool go, float[2] x) => (float[n] y) {
      none = SequenceConstruct (x)
      all = Loop <body = g (int64 i, bool c, seq(float[n]) s) => (bool d, seq(float[n]) t) {
        d = Identity (c)  z = Neg (x)  t = SequenceInsert (s, z)
      }> (m, go, none)
      y = ConcatFromSequence <axis = 0> (all)
    }"""
    assert found(text, CUDA) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("main (float[n] x) => (int64[1] y) { s = Shape (x)  y = Mul (s, s) }", True),
        ("main (int64[n] x, int64[n] z) => (int64[n] y) { y = Add (x, z) }", True),
        ("main (int64[n] x, int64[n] z) => (bool[n] y) { y = Less (x, z) }", True),
        ("main (int64[b, n] x) => (float[b, n] y) { y = Cast <to = 1> (x) }", True),
        ("main (int64[b, n] x, int64[b, n] z) => (int64[b, n] y) { y = Add (x, z) }", False),
        ("main (int64[n] x, int64[1] a) => (int64[1, n] y) { y = Unsqueeze (x, a) }", False),
        ("main (int64[n, 1] x, int64[1, n] z) => (int64[n, n] y) { y = Add (x, z) }", False),
        ("main (int64[n, 1] x, int64[1, n] z) => (bool[n, n] y) { y = Less (x, z) }", False),
        ("main (bool[n, 2] x) => (bool[2, n] y) { y = Transpose (x) }", False),
        ("main (double[n] x) => (float[n] y) { y = Cast <to = 1> (x) }", False),
        ("main (float[n] x) => (int64[n] y) { y = Cast <to = 7> (x) }", False),
    ],
)
def test_what_is_declared(text: str, expected: bool) -> None:
    assert [one[2] for one in found(text)] == [expected]


def test_what_depends_on_data_is_not_declared() -> None:
    text = """main (float[n, 4] x) => (int64[n] y) {
      i = ArgMax <axis = 1, keepdims = 0> (x)  y = Add (i, i)
    }"""
    assert found(text) == [
        ("Add", "no kernel for int64 (T), only for float, float16, int32, uint32", False)
    ]


def test_casts_of_what_the_cpu_computed() -> None:
    text = """main (int64[b, n] x, int64[1] a) => (float[b, n, 1] y, float[n] z) <
      int64 one = {1}, int64 zero = {0}> {
      w = Unsqueeze (x, a)  y = Cast <to = 1> (w)
      s = Shape <start = 1, end = 2> (x)  e = Squeeze (s)  r = Range (zero, e, one)
      z = Cast <to = 1> (r)
    }"""
    ends = [(op, expected) for op, _, expected in found(text) if op in ("Unsqueeze", "Cast")]
    assert ends == [("Unsqueeze", False), ("Cast", False), ("Cast", True)]


def test_loops_are_not_declared() -> None:
    text = """main (int64 n, bool go, int64 v) => (int64 y) {
      y = Loop (n, go, v) <body = one (int64 i, bool c, int64 a) => (bool d, int64 b) {
        d = Identity (c)  b = Add (a, i)
      }>
    }"""
    assert {expected for op, _, expected in found(text) if op in ("Loop", "Add")} == {False}


def test_operators_of_onnxruntime() -> None:
    head = '<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>\n'
    body = "main ({0}[n] x) => ({0}[n] y) {{ y = com.microsoft.QuickGelu (x) }}"
    assert found(head + body.format("float")) == []
    assert found(head + body.format("bfloat16"))[0][:2] == (
        "QuickGelu",
        "no kernel for bfloat16 (T), only for float, float16",
    )


def test_whether_there_is_any_kernel() -> None:
    model = parse("main (int64[n] x) => (int64[n] y) { y = Add (x, x) }", 18)
    assert not has_kernels(model, WEBGPU)
    assert has_kernels(model, CUDA)
    assert not has_kernels(model, "OpenVINOExecutionProvider")


def test_the_tables() -> None:
    assert {"Attention", "TensorScatter"} & {*TABLES[WEBGPU], *TABLES[CUDA]} == set()
    for provider in (CUDA, WEBGPU):
        assert "com.microsoft::GroupQueryAttention" in TABLES[provider]
        assert SOURCES[provider].startswith("onnxruntime 1.")
