from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.merge_duplicates import merge_common_subexpressions
from tests.passes.rewriting import leaves, rewrite, same_numbers

HEAD = '<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>\n'
TEXT = """main (float[n] x) => (float[n] z)
{ a = Cos (x)  b = Cos (x)  c = Neg (a)  d = Neg (b)  z = Mul (c, d) }"""


def test_doubles_and_what_they_make_equal() -> None:
    expected = "main (float[n] x) => (float[n] z) { a = Cos (x)  c = Neg (a)  z = Mul (c, c) }"
    rewrite(TEXT, merge_common_subexpressions, 2, expected)
    same_numbers(TEXT, merge_common_subexpressions, {"x": np.ones(2, np.float32)})


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
