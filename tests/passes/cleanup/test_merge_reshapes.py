from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.merge_reshapes import merge_reshapes
from tests.passes.rewriting import fuses, leaves


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
