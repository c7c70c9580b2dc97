from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.contrib.activations import contrib_activations
from tests.passes.rewriting import fuses, leaves

HEAD = "main (float[n, 2] x) => (float[n, 2] y)"
BODIES = """
<domain: "ai.coreai", opset_import: ["": 23]>
gelu <approximate: string = "none"> (input) => (output) { output = Gelu <approximate: string = @approximate> (input) }
<domain: "ai.coreai", opset_import: ["": 23]>
silu (input) => (output) { s = Sigmoid (input)  output = Mul (input, s) }"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Gelu (x)", "{ y = com.microsoft.Gelu (x) }"),
        ('y = ai.coreai.gelu <approximate = "tanh"> (x)', "{ y = com.microsoft.FastGelu (x) }"),
        ("y = ai.coreai.silu (x)", "{ y = com.microsoft.QuickGelu <alpha = 1.0> (x) }"),
        ("float[n, 2] s = Add (b, x)  y = ai.coreai.gelu (s)", "<float[2] b = {3, -4}> { y = com.microsoft.BiasGelu (x, b) }"),
    ],
)  # fmt: skip
def test_activations_are_onnxruntimes(body: str, expected: str) -> None:
    feeds = {"x": np.array([[1, -2], [0.5, 3]], np.float32)}
    text = f"{HEAD} <float[2] b = {{3, -4}}> {{ {body} }}{BODIES}"
    fuses(text, contrib_activations, 1, f"{HEAD} {expected}", feeds)


def test_other_dtypes_stay() -> None:
    text = f"{HEAD} {{ y = Gelu (x) }}".replace("float", "float16")
    leaves(text, contrib_activations, "the dtype is not float32")
