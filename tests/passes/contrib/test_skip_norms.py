from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.contrib.skip_norms import contrib_skip_norms
from tests.passes.rewriting import fuses, leaves

HEAD = "main (float[n, {d}] x, float[n, 2] r) => (float[n, 2] y, float[n, 2] s) <float[2] w = {{1, 2}}, float[2] b = {{3, 4}}>"
CALL = " {{ y, s = ai.coreai.skip_{norm} <axes = [{axis}], eps = 0.25, version = 1> (x, r, {rest}) }}\n"
BODY = """<domain: "ai.coreai", opset_import: ["": 23]>
skip_{norm} <axes, eps: float> (input, skip, {rest}) => (output, sum) {{ sum = Add (input, skip)  output = {op} <axis = -1, epsilon: float = @eps> (sum, {rest}) }}"""
FEEDS = {"x": np.array([[1, 2], [-3, 1]], np.float32), "r": np.array([[0, 5], [3, 7]], np.float32)}


@pytest.mark.parametrize(
    ("norm", "rest", "op", "contrib"),
    [
        ("rms_norm", "w", "RMSNormalization", "SkipSimplifiedLayerNormalization"),
        ("layer_norm", "w, b", "LayerNormalization", "SkipLayerNormalization"),
        ("layer_norm", "w", "LayerNormalization", "SkipLayerNormalization"),
    ],
)
def test_residual_norms_are_onnxruntimes(norm: str, rest: str, op: str, contrib: str) -> None:
    names = {"norm": norm, "rest": rest, "op": op, "axis": -1, "d": 2}
    head = HEAD.format(**names) if "b" in rest else HEAD.format(**names).replace(", float[2] b = {3, 4}", "")  # fmt: skip
    fuses(
        head + CALL.format(**names) + BODY.format(**names),
        contrib_skip_norms,
        1,
        f'{head} {{ y, "", "", s = com.microsoft.{contrib} <epsilon = 0.25> (x, r, {rest}) }}',
        FEEDS,
    )


@pytest.mark.parametrize(
    ("axis", "dim", "reason"),
    [
        (0, "2", "the norm must be of the last axis, with a scale"),
        (-1, "1", "the terms are not known to have two or three dims"),
    ],
)
def test_others_stay(axis: int, dim: str, reason: str) -> None:
    names = {"norm": "rms_norm", "rest": "w", "op": "RMSNormalization", "axis": axis, "d": dim}
    text = HEAD.format(**names) + CALL.format(**names) + BODY.format(**names)
    leaves(text, contrib_skip_norms, reason)
