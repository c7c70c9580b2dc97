from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.fuse.fuse_gemm import add_to_conv_bias
from tests.passes.rewriting import fuses, leaves

TEXT = """main (float[n, 1, 2, 2] x) => (float[n, 2, 1, 1] y{more})
  <float[2, 1, 2, 2] w = {{1, 2, 3, 4, -1, -2, 5, 6}}, float[2] b = {{0.5, -1}}, float[{dims}] c = {{{values}}}> {{
  a = Conv ({conv})  y = Add (a, c)
}}"""


@pytest.mark.parametrize(
    ("conv", "dims", "values", "bias"),
    [
        ("x, w", "2, 1, 1", "3, 4", "3, 4"),
        ("x, w, b", "1, 2, 1, 1", "3, 4", "3.5, 3"),
        ("x, w", "1", "3", "3, 3"),
    ],
)
def test_a_constant_per_channel_is_a_bias(conv, dims, values, bias) -> None:
    fuses(
        TEXT.format(conv=conv, dims=dims, values=values, more=""),
        add_to_conv_bias,
        1,
        f"""main (float[n, 1, 2, 2] x) => (float[n, 2, 1, 1] y)
          <float[2, 1, 2, 2] w = {{1, 2, 3, 4, -1, -2, 5, 6}}, float[2] "w.bias" = {{{bias}}}> {{
          y = Conv (x, w, "w.bias")
        }}""",
        {"x": np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)},
    )


@pytest.mark.parametrize(
    ("dims", "values", "more", "reason"),
    [
        ("1, 2", "3, 4", "", "the constant must have one value per channel"),
        ("2, 1, 1", "3, 4", ", float[n, 2, 1, 1] a", "something else reads the convolution"),
    ],
)
def test_other_sums_stay(dims, values, more, reason) -> None:
    text = TEXT.format(conv="x, w", dims=dims, values=values, more=more)
    leaves(text, add_to_conv_bias, reason)
