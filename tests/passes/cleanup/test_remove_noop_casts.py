from __future__ import annotations

import numpy as np

from coreai_onnx.passes.cleanup.remove_noops import remove_noop_casts
from tests.passes.rewriting import leaves, rewrite, same_numbers

TEXT = """main (float[n] x) => (float[n] y) <float[1] w = {1}, float[n] a, float[n] b>
{ a = Cast <to = 1> (x)  b = CastLike (a, w)  y = Neg (b) }"""


def test_casts_to_the_same_dtype_go() -> None:
    expected = "main (float[n] x) => (float[n] y) <float[1] w = {1}> { y = Neg (x) }"
    rewrite(TEXT, remove_noop_casts, 2, expected)
    same_numbers(TEXT, remove_noop_casts, {"x": np.array([-1, 2], np.float32)})


def test_casts_to_another_dtype_stay() -> None:
    leaves(
        "main (float[n] x) => (bfloat16[n] z) <float16[n] y> { y = Cast <to = 10> (x)  z = Cast <to = 16> (y) }",
        remove_noop_casts,
    )


def test_an_unknown_dtype_stays() -> None:
    leaves(
        "main (float[n] x) => (float[n] y) { a = Neg (x)  y = Cast <to = 1> (a) }",
        remove_noop_casts,
        "a dtype is not known",
    )


def test_in_a_function_the_dtype_is_not_known() -> None:
    leaves(
        """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
        main (float[n] x) => (float[n] y) { y = ai.coreai.f <to = 1> (x) }
        <domain: "ai.coreai", opset_import: ["": 23]>
        f <to> (x) => (y) { a = Cast <to: int = @to> (x)  y = Neg (a) }""",
        remove_noop_casts,
        "a dtype is not known",
    )
