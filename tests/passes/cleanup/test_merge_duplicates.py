from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.cleanup.merge_duplicates import (
    merge_common_subexpressions,
    merge_duplicate_constants,
)
from tests.passes.rewriting import leaves, parse, rewrite, run_passes, same_numbers

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


HEAD = '<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>\n'


SUBEXPRESSIONS_TEXT = """main (float[n] x) => (float[n] z)
{ a = Cos (x)  b = Cos (x)  c = Neg (a)  d = Neg (b)  z = Mul (c, d) }"""


def test_doubles_and_what_they_make_equal() -> None:
    expected = "main (float[n] x) => (float[n] z) { a = Cos (x)  c = Neg (a)  z = Mul (c, c) }"
    rewrite(SUBEXPRESSIONS_TEXT, merge_common_subexpressions, 2, expected)
    same_numbers(SUBEXPRESSIONS_TEXT, merge_common_subexpressions, {"x": np.ones(2, np.float32)})


def test_a_graph_output_keeps_its_name() -> None:
    rewrite(
        "main (float[n] x) => (float[n] y, float[n] z) { a = Cos (x)  z = Cos (x)  y = Neg (a) }",
        merge_common_subexpressions,
        1,
        "main (float[n] x) => (float[n] y, float[n] z) { z = Cos (x)  y = Neg (z) }",
    )


def test_two_graph_outputs_stay() -> None:
    leaves(
        "main (float[n] x) => (float[n] y, float[n] z) { y = Cos (x)  z = Cos (x) }",
        merge_common_subexpressions,
        "both results are graph outputs",
    )


@pytest.mark.parametrize(
    "pair",
    [
        "a = Softmax <axis = 0> (x)  b = Softmax <axis = 1> (x)",
        "a = Elu <alpha = 0.0> (x)  b = Elu <alpha = -0.0> (x)",
        "a = RandomNormalLike (x)  b = RandomNormalLike (x)",
        "a = Bernoulli (x)  b = Bernoulli (x)",
        "a = Dropout (x, r, t)  b = Dropout (x, r, t)",
        "a = Sub (x, w)  b = Sub (w, x)",
        "a = Clip (x, r)  b = Clip (x, , r)",
        "a = ai.coreai.unknown (x)  b = ai.coreai.unknown (x)",
        "a = Cast <to = 1> (x)  b = Identity (x)",
    ],
)
def test_what_is_not_the_same_stays(pair) -> None:
    leaves(
        f"main (float[n, n] x, float[n, n] w, float r, bool t) => (float[n, n] z) {{ {pair}  z = Add (a, b) }}",
        merge_common_subexpressions,
    )


def test_calls_of_pure_functions_are_merged_and_of_random_ones_not() -> None:
    main = "main (float[n] x) => (float[n] z) { a = ai.coreai.f (x)  b = ai.coreai.f (x)  z = Add (a, b) }\n"
    merged = "main (float[n] x) => (float[n] z) { a = ai.coreai.f (x)  z = Add (a, a) }\n"
    pure = '<domain: "ai.coreai", opset_import: ["": 23]> f (x) => (y) { y = Cos (x) }\n'
    rewrite(HEAD + main + pure, merge_common_subexpressions, 1, HEAD + merged + pure)
    calls = pure.replace('["": 23]', '["": 23, "ai.coreai": 1]').replace("Cos", "ai.coreai.g")
    random = (
        '<domain: "ai.coreai", opset_import: ["": 23]> g (x) => (y) { y = RandomNormalLike (x) }\n'
    )
    leaves(HEAD + main + calls + random, merge_common_subexpressions)


def test_inside_a_function() -> None:
    head = HEAD + "main (float[n] x) => (float[n] y) { y = ai.coreai.f <alpha = 1.0> (x) }\n"
    body = '<domain: "ai.coreai", opset_import: ["": 23]> f <alpha> (x) => (y) {{ {} }}'
    rewrite(
        head
        + body.format(
            "a = Elu <alpha: float = @alpha> (x)  b = Elu <alpha: float = @alpha> (x)  y = Add (a, b)"
        ),
        merge_common_subexpressions,
        1,
        head + body.format("a = Elu <alpha: float = @alpha> (x)  y = Add (a, a)"),
    )


def test_several_results() -> None:
    rewrite(
        "main (float[4] x) => (float[2] z) { a, b = Split <num_outputs = 2> (x)  c, d = Split <num_outputs = 2> (x)  z = Add (a, d) }",
        merge_common_subexpressions,
        1,
        "main (float[4] x) => (float[2] z) { a, b = Split <num_outputs = 2> (x)  z = Add (a, b) }",
    )
