"""Positions and masks that are affine: results of the rules equal those of onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.analysis.affine import AffineExpr, AffineMask, AffineTensor, affine_expr
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse, run


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


HEAD = """main (float[batch, seq] x, float[batch, past] z) => ({kind}[{dims}] y)
  <int64 zero = {{0}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[1] v1 = {{1}}, int64[1] last = {{-1}},
   int64[1] far = {{9223372036854775807}}, int64[2] lead = {{0, 1}}, int64[6] six = {{3, 5, 7, 9, 11, 13}}, int64[3] odd = {{1, 2, 4}}> {{
  int64[1] s = Shape <start = 1, end = 2> (x)  n = Squeeze (s, v0)  int64[seq] i = Range (zero, n, one)
  int64[1] t = Shape <start = 1, end = 2> (z)  p = Squeeze (t, v0)  int64[seq] q = Add (i, p)
  int64[1] w = Add (s, t)  m = Squeeze (w, v0)  k = Range (zero, m, one)
  int64[1] b = Shape <start = 0, end = 1> (x)  int64[2] bs = Concat <axis = 0> (b, s)
  int64[1, seq] row = Unsqueeze (i, v0)  int64[batch, seq] rows = Expand (row, bs)  int64[seq, 1] column = Unsqueeze (i, v1)
  {body} }}"""


BINDINGS = ({"batch": 2, "seq": 5, "past": 3}, {"batch": 1, "seq": 1, "past": 4})


def number(amount: AffineExpr, binding: dict[str, int]) -> int:
    factors = (factor * binding[name] for name, factor in amount.terms)
    return amount.constant + sum(factors)


def values(count: AffineTensor, shape: tuple[int, ...], binding: dict[str, int]) -> np.ndarray:
    """What a count says that a tensor of this shape holds."""
    total = np.full(shape, number(count.start, binding), np.int64)
    for axis, step in enumerate(count.steps):
        total += step * np.indices(shape)[axis] if shape else 0
    return total


def held(text: str) -> AffineTensor | AffineMask | None:
    """Return what is known of y, after holding it to what onnxruntime computes."""
    model = parse(text)
    known = AffineAnalysis().of(open_model(model).outputs[0])
    if known is None:
        return None
    for binding in BINDINGS:
        sizes = [(binding["batch"], binding[name]) for name in ("seq", "past")]
        feeds = {n: np.zeros(size, np.float32) for n, size in zip("xz", sizes, strict=True)}
        (actual,) = run(parse(text), feeds)
        if isinstance(known, AffineTensor):
            expected = values(known, actual.shape, binding)
        else:
            constraints = [values(e, actual.shape, binding) for e in known.constraints]
            expected = np.logical_and.reduce([constraint <= 0 for constraint in constraints])
        np.testing.assert_array_equal(actual, expected)
        for dim, size in zip(known.dims, actual.shape, strict=True):
            assert dim is None or number(dim, binding) == size
    return known


COUNTS = [
    ("y = Identity (rows)", "batch, seq", (0, 1)),
    ("y = Add (rows, column)", "u, v", None),
    ("y = Add (q, one)", "seq", (1,)),
    ("y = Sub (row, column)", "seq, seq", (-1, 1)),
    ("two = Add (one, one)  y = Mul (column, two)", "seq, 1", (2, 0)),
    ("y = Mul (i, i)", "seq", None),
    ("y = Transpose <perm = [1, 0]> (rows)", "seq, batch", (1, 0)),
    ("y = Gather <axis = 1> (rows, zero)", "batch", (0,)),
    ("y = Gather <axis = 1> (rows, v0)", "batch, 1", (0, 0)),
    ("y = Gather (rows, zero)", "seq", (1,)),
    ("y = Squeeze (row, v0)", "seq", (1,)),
    ("y = Squeeze (row)", "u", None),
    ("y = Slice (rows, v0, last, v1)", "batch, u", (0, 1)),
    ("y = Slice (rows, v0, v1, v1)", "batch, 1", (0, 0)),
    ("y = Slice (six, v1, far)", "5", (2,)),
    ("y = Slice (six, last, far)", "1", None),
    ("y = Identity (odd)", "3", None),
    ("a = Slice (six, v0, v1)  c = Slice (six, v1, far)  y = Concat <axis = 0> (a, c)", "6", (2,)),
    ("y = Concat <axis = 0> (six, six)", "12", None),
    ("y = Cast <to = 6> (rows)", "batch, seq", (0, 1)),
    ("f = Cast <to = 1> (rows)  y = Cast <to = 7> (f)", "batch, seq", None),
    ("a = Equal (q, i)  y = Cast <to = 7> (a)", "seq", None),
    ("d = Sub (rows, rows)  y = CumSum (d, one)", "batch, seq", (0, 0)),
    ("d = Sub (rows, rows)  e = Add (d, one)  y = CumSum (e, one)", "batch, seq", (0, 1)),
    ("y = CumSum (rows, one)", "batch, seq", None),
]


@pytest.mark.parametrize(("body", "dims", "steps"), COUNTS)
def test_counts_are_what_onnxruntime_computes(body, dims, steps) -> None:
    kind = "int32" if "to = 6" in body else "int64"
    known = held(HEAD.format(kind=kind, dims=dims, body=body))
    assert (None if known is None else known.steps) == steps


SAME = [
    ("int64[batch, seq] g = Expand (one, bs)  y = Slice (g, v0, s, v1)", "batch, seq"),
    (
        "int64[batch, seq] g = Expand (one, bs)  y = GatherElements <axis = 1> (g, rows)",
        "batch, seq",
    ),
]


@pytest.mark.parametrize(("body", "dims"), SAME)
def test_parts_of_what_is_one_number_are_that_number(body, dims) -> None:
    known = held(HEAD.format(kind="int64", dims=dims, body=body))
    assert isinstance(known, AffineTensor)
    assert known.splat == 1


TRUE, FALSE, SOME, NOTHING = 1, 0, "some", None


MASKS = [
    ("y = LessOrEqual (row, column)", "seq, seq", SOME),
    ("y = Less (row, column)", "seq, seq", SOME),
    ("y = GreaterOrEqual (row, column)", "seq, seq", SOME),
    ("y = Greater (row, column)", "seq, seq", SOME),
    ("c = Unsqueeze (q, v1)  y = LessOrEqual (k, c)", "seq, total", SOME),
    ("y = GreaterOrEqual (row, zero)", "1, seq", TRUE),
    ("y = Less (row, zero)", "1, seq", FALSE),
    ("y = Equal (rows, rows)", "batch, seq", TRUE),
    ("y = Equal (rows, column)", "u, v", NOTHING),
    ("e = Add (i, one)  y = Equal (e, i)", "seq", FALSE),
    ("e = Add (i, one)  f = Equal (e, i)  y = Not (f)", "seq", TRUE),
    ("a = LessOrEqual (row, column)  y = Not (a)", "seq, seq", NOTHING),
    (
        "a = LessOrEqual (row, column)  c = GreaterOrEqual (row, zero)  y = And (a, c)",
        "seq, seq",
        SOME,
    ),
    ("a = LessOrEqual (row, column)  c = Greater (row, column)  y = And (a, c)", "seq, seq", SOME),
    ("a = LessOrEqual (row, column)  c = Less (row, zero)  y = And (a, c)", "seq, seq", NOTHING),
    ("a = LessOrEqual (row, column)  y = Unsqueeze (a, lead)", "1, 1, seq, seq", SOME),
    (
        """int64[batch, 1] e = Slice (rows, v0, v1, v1)  f = Sub (e, one)  g = Concat <axis = 1> (f, rows)
        h = Slice (g, v0, last, v1)  d = Sub (rows, h)  y = Equal (d, one)""",
        "batch, seq",
        TRUE,
    ),
]


@pytest.mark.parametrize(("body", "dims", "expected"), MASKS)
def test_masks_are_what_onnxruntime_computes(body, dims, expected) -> None:
    known = held(HEAD.format(kind="bool", dims=dims, body=body))
    found = SOME if isinstance(known, AffineMask) else known and known.splat
    assert found == expected


def test_what_floats_count_is_not_known() -> None:
    text = "main (float[s] x) => (float[4] y) <float a = {0}, float b = {4}, float c = {1}> { y = Range (a, b, c) }"
    assert (
        AffineAnalysis().of(open_model(ir.from_proto(ir.to_proto(parse(text)))).outputs[0]) is None
    )
