from __future__ import annotations

import numpy as np

from coreai_onnx.passes.layout.split_after_heads import split_after_heads
from tests.passes.rewriting import fuses, leaves

TEXT = """main (float[n, s, 6] x) => (float[n, 2, s, 2] q, float[n, 1, s, {size}] k)
  <int64[2] sizes = {{4, 2}}, int64[4] hq = {{0, 0, 2, 2}}, int64[4] hk = {{0, 0, 1, {size}}}> {{
  float[n, s, 4] a, float[n, s, 2] b = Split <axis = -1> (x, sizes)
  float[n, s, 2, 2] c = Reshape (a, hq)  q = Transpose <perm = [0, 2, 1, 3]> (c)
  float[n, s, {k}] d = Reshape (b, hk)  k = Transpose <perm = [0, 2, 1, 3]> (d)
}}"""


def test_one_layout_instead_of_one_per_part() -> None:
    fuses(
        TEXT.format(size=2, k="1, 2"),
        split_after_heads,
        1,
        """main (float[n, s, 6] x) => (float[n, 2, s, 2] q, float[n, 1, s, 2] k)
          <int64[4] a_heads = {0, 0, 3, 2}, int64[2] a_head_counts = {2, 1}> {
          a_reshape = Reshape (x, a_heads)  a_transpose = Transpose <perm = [0, 2, 1, 3]> (a_reshape)
          q, k = Split <axis = 1> (a_transpose, a_head_counts)
        }""",
        {"x": np.arange(36, dtype=np.float32).reshape(2, 3, 6)},
    )


def test_heads_of_other_sizes_stay() -> None:
    text = """main (float[n, s, 6] x) => (float[n, 2, s, 2] q, float[n, 2, s, 1] k)
      <int64[2] sizes = {4, 2}, int64[4] hq = {0, 0, 2, 2}, int64[4] hk = {0, 0, 2, 1}> {
      float[n, s, 4] a, float[n, s, 2] b = Split <axis = -1> (x, sizes)
      float[n, s, 2, 2] c = Reshape (a, hq)  q = Transpose <perm = [0, 2, 1, 3]> (c)
      float[n, s, 2, 1] d = Reshape (b, hk)  k = Transpose <perm = [0, 2, 1, 3]> (d)
    }"""
    leaves(text, split_after_heads, "all parts must be split into heads of the same size")
