from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.cleanup.merge_duplicates import merge_duplicate_constants
from tests.passes.rewriting import leaves, parse, rewrite, same_numbers

TEXT = """main (float[n] x) => (float[n] z) <float[2] a = {1, 2}, float[2] b = {1, 2}>
{ c = Constant <value = float[2] {1, 2}> ()  y = Add (x, a)  w = Mul (y, b)  z = Add (w, c) }"""


def test_equal_constants_become_the_first() -> None:
    expected = """main (float[n] x) => (float[n] z) <float[2] a = {1, 2}>
    { y = Add (x, a)  w = Mul (y, a)  z = Add (w, a) }"""
    rewrite(TEXT, merge_duplicate_constants, 2, expected)
    same_numbers(TEXT, merge_duplicate_constants, {"x": np.ones(2, np.float32)})


def test_readers_in_subgraphs_follow() -> None:
    text = """main (bool c, float[2] x) => (float[2] y) <float[2] p = {1, 2}, float[2] q = {1, 2}> {
      h = Add (x, p)
      y = If (c) <then_branch = a () => (float[2] t) { t = Add (h, q) },
                  else_branch = b () => (float[2] e) { e = Mul (h, q) }>
    }"""
    same_numbers(
        text, merge_duplicate_constants, {"c": np.array(True), "x": np.ones(2, np.float32)}
    )
    model = parse(text)
    run_passes(model, [merge_duplicate_constants])
    assert list(model.graph.initializers) == ["p"]


def test_what_differs_stays() -> None:
    leaves(
        """main (float[2] x) => (float[2] z, int64[2] w)
        <float[2] a = {1, 2}, float[2] b = {1, 3}, float[1, 2] c = {1, 2}, int64[2] d = {1, 2},
         float[1] p = {0.0}, float[1] m = {-0.0}>
        { y = Add (x, a)  q = Mul (y, b)  r = Add (q, c)  s = Add (r, p)  t = Add (s, m)  z = Reshape (t, d)
          w = Neg (d) }""",
        merge_duplicate_constants,
    )


def test_defaults_of_inputs_stay() -> None:
    leaves(
        "main (float[1] s = {1}, float[1] t = {1}) => (float[1] z) <float[1] w = {1}> { y = Add (s, t)  z = Add (y, w) }",
        merge_duplicate_constants,
    )


def test_big_tensors_are_compared_by_all_their_bytes() -> None:
    base = np.zeros(1 << 20, np.float32)
    other = base.copy()
    other[300_001] = 1
    model = parse(
        """main (float[n] x) => (float[n] z) <float[1] a = {1}, float[1] b = {2}, float[1] c = {3}>
        { p = Add (x, a)  q = Add (p, b)  z = Add (q, c) }"""
    )
    for name, values in (("a", base), ("b", other), ("c", base.copy())):
        model.graph.initializers[name].const_value = ir.tensor(values, name=name)
    first = model.graph.initializers["a"].const_value
    assert run_passes(model, [merge_duplicate_constants]).total == 1
    assert list(model.graph.initializers) == ["a", "b"]
    assert model.graph.initializers["a"].const_value is first
