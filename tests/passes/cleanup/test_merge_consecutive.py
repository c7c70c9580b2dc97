"""Casts, reshapes and transposes in a row become one."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.merge_consecutive import (
    constant_reshapes,
    merge_casts,
    merge_reshapes,
    merge_transposes,
    transposes_of_units,
)
from tests.passes.rewriting import fuses, leaves, parse, rewrite, run_passes, same_numbers

CODES = {"float": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "double": 11, "bfloat16": 16}  # fmt: skip


TEXT = "main ({a}[n] x) => ({c}[n] z) {{ y = Cast <to = {b}> (x)  z = Cast <to = {code}> ({v}) }}"


def text(a: str, b: str, c: str, v: str = "y") -> str:
    return TEXT.format(a=a, b=CODES[b], c=c, code=CODES[c], v=v)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("float16", "float", "double"),
        ("float16", "float", "bfloat16"),
        ("float", "double", "int64"),
        ("bool", "int64", "float"),
        ("int32", "double", "float"),
        ("int32", "int64", "float"),
    ],
)
def test_what_loses_nothing_is_left_out(a: str, b: str, c: str) -> None:
    rewrite(text(a, b, c), merge_casts, 1, text(a, b, c, "x"))
    kinds = {"float16": np.float16, "float": np.float32, "bool": np.bool_, "int32": np.int32}
    if c != "bfloat16":  # numpy has none
        feeds = {"x": np.array([0, 1, 5, 7], kinds[a])}
        same_numbers(text(a, b, c), merge_casts, feeds)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("float", "float16", "float"),
        ("float", "bfloat16", "float"),
        ("float16", "bfloat16", "float"),
        ("int64", "float", "int64"),
        ("int32", "float", "double"),
        ("float", "int64", "float"),
        ("int64", "int32", "float"),
        ("int32", "double", "float16"),
    ],
)
def test_what_may_lose_something_stays(a: str, b: str, c: str) -> None:
    leaves(text(a, b, c), merge_casts, "the dtype between the casts may lose something")


def test_unsqueezes_are_joined() -> None:
    fuses(
        """main (float[s, t] x) => (float[1, s, 1, t] z) <int64[1] a = {0}, int64[1] b = {-2}> {
          float[1, s, t] y = Unsqueeze (x, a)  z = Unsqueeze (y, b)
        }""",
        merge_reshapes,
        1,
        "main (float[s, t] x) => (float[1, s, 1, t] z) <int64[2] z_axes = {0, 2}> { z = Unsqueeze (x, z_axes) }",
        {"x": np.ones((2, 3), np.float32)},
    )


@pytest.mark.parametrize(
    ("middle", "first"),
    [
        ("float[b, 4, 1, 8]", "Unsqueeze (x, a)"),
        ("float[c, 8]", "Reshape (x, rows)"),
    ],
)
def test_targets_are_joined(middle: str, first: str) -> None:
    fuses(
        f"""main (float[b, 4, 8] x) => (float[b, 32] z) <int64[1] a = {{2}}, int64[2] rows = {{-1, 8}}, int64[2] s = {{-1, 32}}> {{
          {middle} y = {first}  z = Reshape (y, s)
        }}""",
        merge_reshapes,
        1,
        "main (float[b, 4, 8] x) => (float[b, 32] z) <int64[2] z_shape = {0, 32}> { z = Reshape (x, z_shape) }",
        {"x": np.arange(64, dtype=np.float32).reshape(2, 4, 8)},
    )


def test_two_unknown_dims_cannot_be_inferred() -> None:
    leaves(
        """main (float[b, s] x, int64[2] s2) => (float[c, d] z) <int64[1] all = {-1}> {
          float[e] y = Reshape (x, all)  z = Reshape (y, s2)
        }""",
        merge_reshapes,
        "too few dims are known for one target",
    )


RESHAPES_TEXT = """main (float[batch, seq, 384] x) => (float[batch, seq, 12, 32] y) <int64[2] heads = {12, 32}> {
  s = Shape <end = 2> (x)
  t = Concat <axis = 0> (s, heads)
  y = Reshape (x, t)
}"""


def test_copied_dims_become_zeros() -> None:
    expected = """main (float[batch, seq, 384] x) => (float[batch, seq, 12, 32] y)
    <int64[2] heads = {12, 32}, int64[4] y_shape = {0, 0, 12, 32}>
    { s = Shape <end = 2> (x)  t = Concat <axis = 0> (s, heads)  y = Reshape (x, y_shape) }"""
    rewrite(RESHAPES_TEXT, constant_reshapes, 1, expected)
    same_numbers(RESHAPES_TEXT, constant_reshapes, {"x": np.zeros((2, 3, 384), np.float32)})
    same_numbers(RESHAPES_TEXT, constant_reshapes, {"x": np.zeros((0, 3, 384), np.float32)})


def test_one_unknown_dim_is_inferred() -> None:
    text = """main (float[batch, seq, 12, 32] x, int64[1] n) => (float[n, 32] y) <int64[1] d = {32}>
    { t = Concat <axis = 0> (n, d)  y = Reshape (x, t) }"""
    expected = """main (float[batch, seq, 12, 32] x, int64[1] n) => (float[n, 32] y)
    <int64[1] d = {32}, int64[2] y_shape = {-1, 32}>
    { t = Concat <axis = 0> (n, d)  y = Reshape (x, y_shape) }"""
    rewrite(text, constant_reshapes, 1, expected)
    feeds = {"x": np.zeros((2, 3, 12, 32), np.float32), "n": np.array([72])}
    same_numbers(text, constant_reshapes, feeds)


def test_a_copied_and_an_inferred_dim_do_not_go_together() -> None:
    text = """main (float[batch, seq, 4] x, int64[1] n) => (float[batch, n] y) {
      b = Shape <end = 1> (x)  t = Concat <axis = 0> (b, n)  y = Reshape (x, t)
    }"""
    leaves(text, constant_reshapes, "too few dims of the target are known")


def test_unless_the_target_inferred_it_already() -> None:
    text = """main (float[batch, seq, 4] x) => (float[batch, n] y) <int64[1] m = {-1}> {
      b = Shape <end = 1> (x)  t = Concat <axis = 0> (b, m)  y = Reshape (x, t)
    }"""
    same_numbers(text, constant_reshapes, {"x": np.zeros((2, 3, 4), np.float32)})


def test_two_inferred_dims_stay() -> None:
    leaves(
        "main (float[a, b] x, int64[2] t) => (float[c, d] y) { y = Reshape (x, t) }",
        constant_reshapes,
        "the target shape is not known",
    )


def test_a_dim_at_another_place_is_not_copied() -> None:
    text = """main (float[a, b] x) => (float[b, a] y) { p = Shape <start = 1> (x)  q = Shape <end = 1> (x)
    t = Concat <axis = 0> (p, q)  y = Reshape (x, t) }"""
    leaves(text, constant_reshapes, "too few dims of the target are known")


def test_allowzero_stays() -> None:
    text = RESHAPES_TEXT.replace("Reshape (x, t)", "Reshape <allowzero = 1> (x, t)")
    leaves(text, constant_reshapes, "allowzero gives 0 another meaning")


FEEDS = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4)}


def test_two_become_one() -> None:
    text = """main (float[a, b, c] x) => (float[c, b, a] z) {
      y = Transpose <perm = [1, 0, 2]> (x)  z = Transpose <perm = [2, 0, 1]> (y)
    }"""
    rewrite(
        text,
        merge_transposes,
        1,
        """main (float[a, b, c] x) => (float[c, b, a] z) {
          y = Transpose <perm = [1, 0, 2]> (x)  z = Transpose <perm = [2, 1, 0]> (x)
        }""",
    )
    same_numbers(text, merge_transposes, FEEDS)


AROUND = """main (float[a, b, c] x) => (float[a, b, c] z{more}) <float two = {{2}}> {{
  t = Transpose <perm = [1, 0, 2]> (x)  float[b, a, c] u = {op}  v = Transpose <perm = {perm}> (u)  z = Abs (v)
}}"""


@pytest.mark.parametrize("op", ["Neg ({t})", "Mul ({t}, two)", "Pow (two, {t})", "Add ({t}, {t})"])
def test_elementwise_ops_do_not_need_them(op: str) -> None:
    text = AROUND.format(op=op.format(t="t"), perm="[1, 0, 2]", more="")
    rewrite(
        text,
        merge_transposes,
        1,
        f"""main (float[a, b, c] x) => (float[a, b, c] z) <float two = {{2}}> {{
          t = Transpose <perm = [1, 0, 2]> (x)  u = {op.format(t="x")}  z = Abs (u)
        }}""",
    )
    same_numbers(text, merge_transposes, {"x": FEEDS["x"] / 8})


@pytest.mark.parametrize(
    ("op", "perm", "more", "reason"),
    [
        ("Neg (t)", "[2, 0, 1]", "", None),  # they do not undo each other
        ("Neg (t)", "[1, 0, 2]", ", float[b, a, c] u", "something else reads the value between two transposes"),
        ("Softmax (t)", "[1, 0, 2]", "", None),
        ("Add (t, x)", "[1, 0, 2]", "", None),
    ],
)  # fmt: skip
def test_others_stay(op: str, perm: str, more: str, reason: str | None) -> None:
    leaves(AROUND.format(op=op, perm=perm, more=more), merge_transposes, reason)


UNITS = "main (float[{shape}] x) => (float[{result}] y) {{ y = Transpose <perm = {perm}> (x) }}"


@pytest.mark.parametrize(
    ("shape", "perm", "middle"),
    [
        ((2, 3, 4, 1, 5), [0, 2, 1, 4, 3], [0, 2, 1, 3]),
        ((2, 3, 4, 1), [0, 3, 1, 2], []),
        ((2, 3, 1, 4), [0, 1, 3, 2], []),
        ((2, 3, 4, 1), [0, 2, 1, 3], [0, 2, 1]),
        ((1, 3, 1, 4), [3, 1, 0, 2], [1, 0]),
    ],
)
def test_axes_of_size_1_are_moved_by_views(shape, perm, middle) -> None:
    result = [shape[axis] for axis in perm]
    text = UNITS.format(
        shape=", ".join(map(str, shape)), result=", ".join(map(str, result)), perm=perm
    )
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    same_numbers(text, transposes_of_units, {"x": x})
    model = parse(text)
    assert run_passes(model, [transposes_of_units]).total == 1
    found = [node.attributes["perm"].value for node in model.graph if node.op_type == "Transpose"]
    assert found == ([tuple(middle)] if middle else [])


@pytest.mark.parametrize(
    ("shape", "perm"),
    # Batches of one in a usual attention, and sizes that are not known.
    [("1, 3, 4, 5", [0, 2, 1, 3]), ("b, s, h, d", [0, 2, 1, 3]), ("1, 1", [1, 0])],
)
def test_other_transposes_stay(shape: str, perm: list[int]) -> None:
    dims = shape.split(", ")
    result = ", ".join(dims[axis] for axis in perm)
    leaves(UNITS.format(shape=shape, result=result, perm=perm), transposes_of_units)
