from __future__ import annotations

from coreai_onnx.passes.analysis.affine import AffineExpr, AffineTensor, affine_expr
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse


def known(text: str) -> object:
    return AffineAnalysis().of(open_model(parse(text)).outputs[0])


def test_constants_that_count() -> None:
    text = "main (float[s] x) => (int64[2, 3] y) <int64[2, 3] c = {0, 2, 4, 5, 7, 9}> { y = Identity (c) }"
    assert known(text) == AffineTensor(AffineExpr(0), (5, 2), (AffineExpr(2), AffineExpr(3)))
    assert known(text.replace("9}", "8}")) is None


def test_small_integers_may_wrap_round_and_are_not_followed() -> None:
    text = "main (float[s] x) => (uint8[2] y) <uint8[2] c = {0, 1}> { y = Identity (c) }"
    assert known(text) is None


def test_inputs_and_other_ops_are_not_known() -> None:
    assert known("main (int64[s] x) => (int64[s] y) { y = Identity (x) }") is None
    assert known("main (int64[s] x) => (int64[s] y) { y = Neg (x) }") is None


def test_a_range_of_unknown_limit_is_followed_on_request() -> None:
    graph = open_model(
        parse("""main (int64 n, float[s] x) => (int64[s] y) <int64 zero = {0}, int64 one = {1}> {
          y = Range (zero, n, one) }""")
    )
    assert AffineAnalysis().of(graph.outputs[0]) is None
    found = AffineAnalysis(open_ranges=True).of(graph.outputs[0])
    assert found == AffineTensor(AffineExpr(0), (1,), (affine_expr("s"),))
