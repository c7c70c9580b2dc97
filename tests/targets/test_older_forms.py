from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.targets.older_forms import obstacle
from tests.passes.rewriting import parse


def node(text: str, opset: int) -> ir.Node:
    return parse(text, opset).graph[0]


@pytest.mark.parametrize(
    ("body", "opset", "reason"),
    [
        ("y = Add (x, x)", 23, ""),
        ("y = Reshape (x, s)", 23, ""),
        ("y = RMSNormalization (x, x)", 23, "is an op since opset 23"),
        ("y = Attention (x, x, x)", 24, "is an op since opset 23"),  # revised in 24
        ("y = Gelu (x)", 20, "is an op since opset 20"),
        ("y = Cast <saturate = 0, to = 1> (x)", 23, "has the attribute saturate, which is newer"),
        ('y = Pad <mode = "wrap"> (x, s)', 21, "has the mode 'wrap', which is newer"),
        ('y = Pad <mode = "edge"> (x, s)', 21, ""),
        (
            "y = GroupNormalization <num_groups = 2> (x, x, x)",
            21,
            "takes a scale per channel since opset 21, before one per group",
        ),
        ("y = Mod (x, x)", 28, "takes floats with fmod=0, which is newer"),
        ("y = Mod <fmod = 1> (x, x)", 28, ""),
        ("z = Mod (s, s)", 28, ""),
        ("y = Nothing (x)", 23, "is unknown to onnx"),
    ],
)
def test_what_is_newer_is_named(body: str, opset: int, reason: str) -> None:
    text = f"main (float[n, m] x, int64[k] s) => (float[a, b] y) {{ {body} }}"
    assert obstacle(node(text, opset), opset, 18) == reason


def test_dtypes_that_came_later() -> None:
    text = "main (bfloat16[n] x) => (bfloat16[n] y) { y = Cos (x) }"
    assert obstacle(node(text, 22), 22, 18) == "takes bfloat16, which is newer"
    assert obstacle(node(text.replace("bfloat16", "float"), 22), 22, 18) == ""
