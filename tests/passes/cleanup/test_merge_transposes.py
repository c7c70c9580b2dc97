from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.merge_consecutive import merge_transposes
from tests.passes.rewriting import leaves, rewrite, same_numbers

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
