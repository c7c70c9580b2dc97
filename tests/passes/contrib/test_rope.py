from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.contrib.rope import contrib_rope
from tests.passes.rewriting import fuses, leaves

HEAD = "main (float[b, 2, s, 4] x, float[{rows}, 1, s, 2] c, int64[4] d) => (float[b, 2, s, 4] y)"
CALL = """ {{ float[b, 1, s, 2] e = Expand (c, d)
  y = ai.coreai.rope <dims = {dims}, interleaved = 0, version = 1> (x, e, e) }}
<domain: "ai.coreai", opset_import: ["": 23]>
rope <dims, interleaved> (input, cos, sin) => (output) {{
  a = Constant <value_ints = [1]> ()  c = Squeeze (cos, a)  s = Squeeze (sin, a)  output = RotaryEmbedding (input, c, s)
}}"""


def test_angles_are_read_once_for_all_rows() -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((2, 2, 3, 4)).astype(np.float32),
        "c": rng.standard_normal((1, 1, 3, 2)).astype(np.float32),
        "d": np.array([2, 1, 3, 2]),
    }
    fuses(
        HEAD.format(rows=1) + CALL.format(dims=0),
        contrib_rope,
        1,
        f"""{HEAD.format(rows=1)} <int64[2] c_lead = {{0, 1}}, int64[1] y_start = {{0}}> {{
          y_squeeze = Squeeze (c, c_lead)
          y = com.microsoft.RotaryEmbedding (x, y_start, y_squeeze, y_squeeze)
        }}""",
        feeds,
    )


def test_tables_are_matrices_all_the_way() -> None:
    head = "main (float[b, 2, s, 4] x, int64[s] p, int64[4] d) => (float[b, 2, s, 4] y) <float[2] f = {1.0, 0.1}, float scale = {0.5}"
    body = f"""{head}, int64[2] around = {{0, 2}}, int64[1] first = {{1}}> {{
      int64[1, s, 1] u = Unsqueeze (p, around)  float[1, s, 1] v = Cast <to = 1> (u)  float[1, s, 2] m = Mul (v, f)
      float[1, s, 2] c = Cos (m)  float[1, s, 2] n = Sin (m)  float[1, s, 2] g = Mul (c, scale)
      float[1, 1, s, 2] h = Unsqueeze (g, first)  float[1, 1, s, 2] i = Unsqueeze (n, first)
      float[b, 1, s, 2] j = Expand (h, d)  float[b, 1, s, 2] k = Expand (i, d)
      y = ai.coreai.rope <dims = 0, interleaved = 0, version = 1> (x, j, k) }}"""
    feeds = {
        "x": np.random.default_rng(0).standard_normal((2, 2, 3, 4)).astype(np.float32),
        "p": np.arange(4, 7),
        "d": np.array([2, 1, 3, 2]),
    }
    fuses(
        body + CALL[CALL.index("\n<domain") :].format(),
        contrib_rope,
        1,
        f"""{head}, int64[1] u_last = {{1}}, int64[1] y_start = {{0}}> {{
          y_unsqueeze = Unsqueeze (p, u_last)  y_cast = Cast <to: int = 1> (y_unsqueeze)
          y_mul = Mul (y_cast, f)  y_cos = Cos (y_mul)  y_mul_1 = Mul (y_cos, scale)  y_sin = Sin (y_mul)
          y = com.microsoft.RotaryEmbedding (x, y_start, y_mul_1, y_sin)
        }}""",
        feeds,
    )


@pytest.mark.parametrize(("rows", "dims"), [("b", 0), ("1", 2)])
def test_others_stay(rows: str, dims: int) -> None:
    text = HEAD.format(rows=rows) + CALL.format(dims=dims)
    leaves(text, contrib_rope, "the angles may differ within the batch")
