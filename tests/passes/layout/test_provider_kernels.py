"""Forms for which execution providers have kernels."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.layout.provider_kernels import (
    alternatives,
    bounds_of_integers,
    casts_of_dtypes,
    extrema_of_two,
    filled_by_expand,
    gathers_of_rows,
    indices_in_int32,
    nans_by_comparison,
    negated_integers,
    positions_of_doubles,
    signs_by_comparison,
    sums_of_two,
    transposes_of_tables,
    triangles_of_positions,
)
from coreai_onnx.passes.order import Pass
from tests.passes.rewriting import leaves, parse, rewrite, run_passes, same_numbers


def test_casts_like_a_known_dtype() -> None:
    rewrite(
        "main (float[a] x, float16[b] z) => (float16[a] y) { y = CastLike (x, z) }",
        casts_of_dtypes,
        1,
        "main (float[a] x, float16[b] z) => (float16[a] y) { y = Cast <to = 10> (x) }",
    )


def test_casts_like_an_unknown_dtype() -> None:
    text = """main (float[a] x, float[b] z) => (float[a] y) {
      w = Neg (z)  y = CastLike (x, w)
    }"""
    leaves(text, casts_of_dtypes, "a dtype is not known")


def test_sums() -> None:
    text = "main (float[a] x, float[a] z) => (float[a] y) {{ y = {} (x, z) }}"
    rewrite(text.format("Sum"), sums_of_two, 1, text.format("Add"))
    leaves("main (float[a] x) => (float[a] y) { y = Sum (x, x, x) }", sums_of_two)


NUMBERS = {
    "x": np.array([[3, -7, 0], [5, 5, -1]]),
    "z": np.array([[2, 0, 0], [5, 6, -2]]),
}


def no_op_is_left(text: str, one: Pass, *ops: str) -> None:
    model = parse(text, 18)
    run_passes(model, [one])
    assert not {node.op_type for node in model.graph} & set(ops)


@pytest.mark.parametrize("op", ["Min", "Max"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_extrema(op: str, dtype: str) -> None:
    text = f"main ({dtype}[2, 3] x, {dtype}[2, 3] z) => ({dtype}[2, 3] y) {{ y = {op} (x, z) }}"
    same_numbers(text, extrema_of_two, {n: x.astype(dtype) for n, x in NUMBERS.items()}, opset=18)
    no_op_is_left(text, extrema_of_two, op)


@pytest.mark.parametrize("op", ["Min", "Max"])
@pytest.mark.parametrize("operands", ["x, limit", "limit, x"])
def test_extrema_of_floats(op: str, operands: str) -> None:
    text = f"main (float[4] x) => (float[4] y) <float limit = {{2}}> {{ y = {op} ({operands}) }}"
    feeds = {"x": np.array([1, 2, 3, np.nan], np.float32)}
    same_numbers(text, extrema_of_two, feeds, opset=18)
    both = f"main (float[4] x, float[4] z) => (float[4] y) {{ y = {op} (x, z) }}"
    numbers = [1, 2, np.inf, np.nan]
    pairs = np.stack(np.meshgrid(numbers, numbers)).reshape(2, -1).astype(np.float32)
    feeds = dict(zip("xz", pairs, strict=True))
    same_numbers(both.replace("[4]", "[16]"), extrema_of_two, feeds, opset=18)
    leaves(both.replace("(x, z) }", "(x, z, x) }"), extrema_of_two, opset=18)


@pytest.mark.parametrize(
    ("bounds", "expected"), [("low, high", ["Max", "Min"]), ("low", ["Max"]), (", high", ["Min"])]
)
def test_clips_of_integers(bounds: str, expected: list[str]) -> None:
    text = f"""main (int64[2, 3] x) => (int64[2, 3] y) <int64 low = {{-1}}, int64 high = {{3}}> {{
      y = Clip (x, {bounds})
    }}"""
    same_numbers(text, bounds_of_integers, {"x": NUMBERS["x"]}, opset=18)
    model = parse(text, 18)
    run_passes(model, [bounds_of_integers])
    assert [node.op_type for node in model.graph] == expected
    leaves(text.replace("int64", "float"), bounds_of_integers, opset=18)


def test_nans() -> None:
    text = "main (float[3] x) => (bool[3] y) { y = IsNaN (x) }"
    feeds = {"x": np.array([1, np.nan, np.inf], np.float32)}
    same_numbers(text, nans_by_comparison, feeds, opset=18)
    no_op_is_left(text, nans_by_comparison, "IsNaN")


@pytest.mark.parametrize("op", ["Or", "Xor"])
def test_alternatives(op: str) -> None:
    text = f"main (bool[4] x, bool[4] z) => (bool[4] y) {{ y = {op} (x, z) }}"
    feeds = {"x": np.array([0, 0, 1, 1], bool), "z": np.array([0, 1, 0, 1], bool)}
    same_numbers(text, alternatives, feeds, opset=18)
    no_op_is_left(text, alternatives, op)


def test_signs() -> None:
    text = "main (int64[2, 3] x) => (int64[2, 3] y) { y = Sign (x) }"
    same_numbers(text, signs_by_comparison, {"x": NUMBERS["x"]}, opset=18)
    no_op_is_left(text, signs_by_comparison, "Sign")
    leaves(text.replace("int64", "float"), signs_by_comparison, "the sign of NaN is NaN", opset=18)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_positions_of_the_largest_integer(op: str) -> None:
    text = f"""main (int64[2, 3] x) => (int64[2, 1] y) {{
      y = {op} <axis = 1, select_last_index = 1> (x)
    }}"""
    same_numbers(text, positions_of_doubles, {"x": NUMBERS["x"]}, opset=18)
    leaves(text.replace("int64[2, 3]", "float[2, 3]"), positions_of_doubles, opset=18)


@pytest.mark.parametrize("op", ["Neg", "Abs"])
def test_negated_integers(op: str) -> None:
    text = f"main (int64[2, 3] x) => (int64[2, 3] y) {{ y = {op} (x) }}"
    same_numbers(text, negated_integers, {"x": NUMBERS["x"]}, opset=18)
    no_op_is_left(text, negated_integers, op)
    leaves(text.replace("int64", "float"), negated_integers, opset=18)
    leaves(text.replace("[2, 3]", "[3]"), negated_integers, opset=18)


def test_filled_matrices() -> None:
    text = """main (int64[2] d) => (float[a, b] y, int64[a, b] z) {
      y = ConstantOfShape (d)  z = ConstantOfShape <value = int64[1] {7}> (d)
    }"""
    same_numbers(text, filled_by_expand, {"d": np.array([2, 3])}, opset=18)
    no_op_is_left(text, filled_by_expand, "ConstantOfShape")
    vector = "main (int64[1] d) => (int64[a] y) { y = ConstantOfShape <value = int64[1] {7}> (d) }"
    leaves(vector, filled_by_expand, opset=18)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", ["", ", k", ", two"])
@pytest.mark.parametrize("dtype", ["bool", "float", "int64"])
def test_triangles(upper: int, k: str, dtype: str) -> None:
    text = f"""main ({dtype}[2, a, b] x, int64 k) => ({dtype}[2, a, b] y, int64 j) <int64 two = {{2}}> {{
      y = Trilu <upper = {upper}> (x{k})  j = Identity (k)
    }}"""
    x = np.ones((2, 4, 3)).astype(np.float32 if dtype == "float" else dtype)
    feeds = {"x": x, "k": np.array(-1)}
    same_numbers(text, triangles_of_positions, feeds, opset=18)
    no_op_is_left(text, triangles_of_positions, "Trilu")


def test_tables_of_buckets() -> None:
    text = """main (int64[a, b] i) => (float[2, a, b] y) <float[3, 2] table = {1, 2, 3, 4, 5, 6}> {
      rows = Gather <axis = 0> (table, i)  y = Transpose <perm = [2, 0, 1]> (rows)
    }"""
    feeds = {"i": np.array([[0, 2, 1], [1, 1, 0]])}
    same_numbers(text, transposes_of_tables, feeds, opset=18)
    no_op_is_left(text, transposes_of_tables, "Transpose")
    leaves(text.replace("[2, 0, 1]", "[0, 2, 1]"), transposes_of_tables, opset=18)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gathers_of_rows(count: int) -> None:
    text = f"""main (float[a, b, c] x, int64[2, 5, {count}] i) => (float[2, 5, ...] y) {{
      int64[2, 5, {count}] j = Neg (i)  y = GatherND (x, j)
    }}""".replace("float[2, 5, ...]", "float[" + ", ".join("25bc"[: 5 - count]) + "]")
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 3, 2)).astype(np.float32)
    # Negative indices count from the end.
    feeds = {"x": x, "i": random.integers(-1, 3, (2, 5, count)) % np.array([4, 3, 2])[:count] - 1}
    same_numbers(text, gathers_of_rows, feeds, opset=18)
    no_op_is_left(text, gathers_of_rows, "GatherND")


def test_gathers_at_an_input() -> None:
    text = "main (float[a, b] x, int64[n, 2] i) => (float[n] y) { y = GatherND (x, i) }"
    leaves(text, gathers_of_rows, opset=18)
    called = """main (float[a, b] x, int64[n, 2] i) => (float[n] y) <int64[n, 2] j> {
      j = Neg (i)  z = GatherND (x, j)  y = ai.coreai.f <version = 1> (z)
    }
    <domain: "ai.coreai", opset_import: ["": 18]> f (a) => (b) { b = Neg (a) }"""
    leaves(called, gathers_of_rows, opset=18)


@pytest.mark.parametrize("to", [1, 6])
def test_indices_that_were_found(to: int) -> None:
    kind = {1: "float", 6: "int32"}[to]
    text = f"""main (float[a, b] x) => ({kind}[a] y, {kind}[a, 2] z) <int64[1] two = {{2}}> {{
      i = ArgMax <axis = 1, keepdims = 0> (x)  y = Cast <to = {to}> (i)
      v, j = TopK (x, two)  z = Cast <to = {to}> (j)
    }}"""
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)}
    same_numbers(text, indices_in_int32, feeds, opset=18)
    model = parse(text, 18)
    assert run_passes(model, [indices_in_int32]).total == 2
