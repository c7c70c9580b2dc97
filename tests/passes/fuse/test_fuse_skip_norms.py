from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.fuse.fuse_skip_norms import fuse_skip_norms
from tests.passes.rewriting import fuses, leaves, parse, run

HEAD = "main (float[n, 2] x, float[{r}] r) => (float[n, 2] y, float[n, 2] z) <float[2] w = {{1, 2}}, float[2] b = {{3, 4}}> {{ {body} }}"
RMS = """
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <axes, eps: float> (input, scale) => (output) {{ output = RMSNormalization <axis = -1, epsilon: float = @eps> (input, scale) }}"""
LAYER = """
<domain: "ai.coreai", opset_import: ["": 23]>
layer_norm <axes, eps: float> (input, scale, bias) => (output) { output = LayerNormalization <axis = -1, epsilon: float = @eps> (input, scale, bias) }"""
FEEDS = {"x": np.array([[1, 2], [-3, 1]], np.float32), "r": np.array([[0, 5], [3, 7]], np.float32)}
ATTRS = "<axes = [-1], eps = 0.01, version = 1>"


@pytest.mark.parametrize(
    ("norm", "rest", "function"),
    [("rms_norm", "w", RMS.format(name="rms_norm")), ("layer_norm", "w, b", LAYER)],
)
def test_a_residual_and_its_norm_are_one_node(norm: str, rest: str, function: str) -> None:
    body = f"s = Add (x, r)  y = ai.coreai.{norm} {ATTRS} (s, {rest})  z = Neg (s)"
    model = fuses(
        HEAD.format(r="n, 2", body=body) + function,
        fuse_skip_norms,
        1,
        HEAD.format(
            r="n, 2", body=f"y, s = ai.coreai.skip_{norm} {ATTRS} (x, r, {rest})  z = Neg (s)"
        ).replace(", float[2] b = {3, 4}" if norm == "rms_norm" else "\0", ""),
        FEEDS,
    )
    functions = {f.name: f for f in model.functions.values()}
    assert set(functions) == {norm, f"skip_{norm}"}
    adds = "Sum" if norm == "layer_norm" else "Add"  # onnxruntime would fuse Add and the norm
    assert functions[f"skip_{norm}"][0].op_type == adds


@pytest.mark.parametrize(("kind", "opset"), [("float16", 23), ("float", 22)])
def test_other_dtypes_and_opsets_add(kind: str, opset: int) -> None:
    text = (
        f"main ({kind}[n, 2] x, {kind}[n, 2] r, {kind}[2] w) => ({kind}[n, 2] y) "
        f"{{ s = Add (x, r)  y = ai.coreai.layer_norm {ATTRS} (s, w) }}"
        + LAYER.replace(", bias", "").replace("23", str(opset))
    )
    model = parse(text, opset)
    assert run_passes(model, [fuse_skip_norms]).total == 1
    made = next(f for f in model.functions.values() if f.name == "skip_layer_norm")
    assert made[0].op_type == "Add"


def test_a_body_that_a_file_has_already_is_called() -> None:
    body = f"s = Add (x, r)  y = ai.coreai.layer_norm {ATTRS} (s, w, b)  z = Neg (s)"
    skip = """
<domain: "ai.coreai", opset_import: ["": 23, "ai.coreai": 1]>
skip_layer_norm <axes, eps: float = 1e-05, version: int = 1> (input, skip, scale, bias) => (output, sum) {
  sum = Add (input, skip)
  output = ai.coreai.layer_norm <axes: ints = @axes, eps: float = @eps, version = 1> (sum, scale, bias)
}"""
    model = parse(HEAD.format(r="n, 2", body=body) + LAYER + skip)
    assert run_passes(model, [fuse_skip_norms]).total == 1
    assert [n.op_type for n in model.graph] == ["skip_layer_norm", "Neg"]


def test_a_variant_keeps_its_word() -> None:
    """A dot is no part of a name in ONNX's text form, so the call is renamed."""
    body = f"s = Add (x, r)  y = ai.coreai.norm {ATTRS} (s, w)  z = Neg (s)"
    model = parse(HEAD.format(r="n, 2", body=body) + RMS.format(name="norm"))
    wanted = run(model, FEEDS)
    (function,) = list(model.functions.values())
    function.name = "rms_norm.wide_scale"
    model.functions.clear()
    model.functions[function.identifier()] = function
    model.graph[1].op_type = "rms_norm.wide_scale"
    assert run_passes(model, [fuse_skip_norms]).total == 1
    assert [n.op_type for n in model.graph] == ["skip_rms_norm.wide_scale", "Neg"]
    for a, b in zip(run(model, FEEDS), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("shape", "scale", "reason"),
    [
        ("1, 2", "w", "the terms are not known to have the same shape"),
        ("n, 2", "c", "scale or bias is computed"),
    ],
)
def test_others_stay(shape: str, scale: str, reason: str) -> None:
    body = f"c = Exp (b)  s = Add (x, r)  y = ai.coreai.rms_norm {ATTRS} (s, {scale})  z = Neg (s)"
    leaves(HEAD.format(r=shape, body=body) + RMS.format(name="rms_norm"), fuse_skip_norms, reason)
