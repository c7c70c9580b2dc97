from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.gathers_of_ranges import gathers_of_ranges
from tests.passes.rewriting import fuses, leaves

TEXT = """main (int64[{b}, s] x, int64 nb, int64 ns) => (int64[b, 1, s, 1] y)
  <int64 zero = {{0}}, int64 one = {{1}}, int64[3] rows = {{1, 2, 3}}, int64[3] columns = {{{columns}}}, int64[1] last = {{-1}}> {{
  int64[b] i = Range ({first}, nb, one)  int64[b, 1, 1, 1] i4 = Unsqueeze (i, rows)
  int64[s] j = Range (zero, ns, one)  int64[1, 1, s, 1] j4 = Unsqueeze (j, columns)
  int64[4] is = Shape (i4)  int64[4] js = Shape (j4)  int64[4] wide = Max (is, js)
  int64[b, 1, s, 1] ie = Expand (i4, wide)  int64[b, 1, s, 1] je = Expand (j4, wide)
  int64[b, 1, s, 1, 1] iu = Unsqueeze (ie, last)  int64[b, 1, s, 1, 1] ju = Unsqueeze (je, last)
  indices = Concat <axis = -1> ({order})
  y = GatherND (x, indices)
}}"""
PLAIN = {"columns": "0, 1, 3", "first": "zero", "order": "iu, ju", "b": "b"}


def test_all_positions_in_order_are_the_data() -> None:
    fuses(
        TEXT.format(**PLAIN),
        gathers_of_ranges,
        1,
        """main (int64[b, s] x, int64 nb, int64 ns) => (int64[b, 1, s, 1] y) <int64[2] y_axes = {1, 3}> {
          y = Unsqueeze (x, y_axes)
        }""",
        {"x": np.arange(6).reshape(2, 3), "nb": np.array(2), "ns": np.array(3)},
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"order": "ju, iu"}, "the axes are gathered in another order"),
        ({"b": "c"}, "the positions may not be all of the axis"),
        ({"first": "one"}, None),
    ],
)
def test_other_positions_are_gathered(change, reason) -> None:
    leaves(TEXT.format(**{**PLAIN, **change}), gathers_of_ranges, reason)
