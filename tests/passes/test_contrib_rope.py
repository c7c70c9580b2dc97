from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.contrib_rope import contrib_rope
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
        f"""{HEAD.format(rows=1)} <int64[2] c_axes = {{0, 1}}, int64[1] y_start = {{0}}> {{
          y_squeeze = Squeeze (c, c_axes)
          y = com.microsoft.RotaryEmbedding (x, y_start, y_squeeze, y_squeeze)
        }}""",
        feeds,
    )


@pytest.mark.parametrize(("rows", "dims"), [("b", 0), ("1", 2)])
def test_others_stay(rows: str, dims: int) -> None:
    text = HEAD.format(rows=rows) + CALL.format(dims=dims)
    leaves(text, contrib_rope, "each row of the batch has angles of its own")
