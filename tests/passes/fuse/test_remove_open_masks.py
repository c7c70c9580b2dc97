from __future__ import annotations

import numpy as np
import pytest
import torch

from coreai_onnx.composites.attention import scaled_dot_product_attention
from coreai_onnx.passes.fuse.masks import NAME, remove_open_masks
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

HEAD = "main (float[b, 2, s, 4] q, float[b, 2, s, 4] k, float[b, 2, s, 4] v, {kind}[b, 1, s, s] other) => (float[b, 2, s, 4] y, float[b, 2, s, 4] z) <{kind}[1, 1, 1, 1] true = {{{value}}}>"
ATTRS = '<scale = 0.5, is_causal = 0, window_size = 0, causal_alignment = "lower_right", softcap = {}, version = 1>'
CALLS = """ {{
  d = Shape (other)  m = Expand (true, d)
  y = ai.coreai.{name} {attrs} (q, k, v, m)  z = ai.coreai.{name} {attrs} (q, k, v, other)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <scale: float> (query, key, value, mask) => (output) {{ output = Attention <scale: float = @scale> (query, key, value, mask) }}"""


@pytest.mark.parametrize(("kind", "value", "word"), [("bool", 1, "mask"), ("float", 0, "bias")])
def test_a_mask_that_hides_nothing_goes(kind: str, value: int, word: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, 2, 3, 4)).astype(np.float32) for n in "qkv"}
    other = rng.standard_normal((2, 1, 3, 3)).astype(np.float32)
    feeds["other"] = other > -1 if kind == "bool" else other
    attrs = ATTRS.format(0.0)
    text = HEAD.format(kind=kind, value=value) + CALLS.format(name=NAME, attrs=attrs)
    expected = f"{HEAD.format(kind=kind, value=value).partition(' <')[0]} {{ y = ai.coreai.{NAME} {attrs} (q, k, v)  z = ai.coreai.WITH {attrs} (q, k, v, other) }}"
    model = fuses_renamed(text, expected, f"{NAME}.{word}", feeds)
    assert {f.name for f in model.functions.values()} == {NAME, f"{NAME}.{word}"}


def fuses_renamed(text, expected, name, feeds):
    """A name with a dot cannot be written in ONNX's text form."""
    import onnx_ir as ir

    from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
    from tests.passes.rewriting import main_text

    model = parse(text)
    assert run_passes(model, [remove_open_masks, remove_dead_code]).counts["remove_open_masks"] == 1
    assert main_text(model).replace(name, "WITH") == main_text(parse(expected))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [remove_open_masks, remove_dead_code]).total == 0
    assert_close(run(model, feeds), run(parse(text), feeds))
    return model


@pytest.mark.parametrize(
    ("value", "softcap", "opset", "reason"),
    [
        (0, 0.0, 23, None),
        (1, 2.0, 23, "there are sinks or a soft cap"),
    ],
)
def test_others_stay(value, softcap, opset, reason) -> None:
    text = HEAD.format(kind="bool", value=value)
    text += CALLS.format(name=NAME, attrs=ATTRS.format(softcap)).replace("23", str(opset))
    leaves(text, remove_open_masks, reason, opset=opset)


def test_a_body_without_mask_is_taken_as_it_is() -> None:
    functions = f"""
<domain: "ai.coreai", opset_import: ["": 23]>
{NAME} <scale: float> (query, key, value) => (output) {{ output = Attention <is_causal = 0, scale: float = @scale> (query, key, value) }}
<domain: "ai.coreai", opset_import: ["": 23]>
masked <scale: float> (query, key, value, mask) => (output) {{ output = Attention <scale: float = @scale> (query, key, value, mask) }}"""
    head = "main (float[b, 2, s, 4] q) => (float[b, 2, s, 4] y, float[b, 2, s, 4] z) <bool[1, 1, 1, 1] true = {1}>"
    attrs = ATTRS.format(0.0)
    model = fuses(
        f"{head} {{ y = ai.coreai.{NAME} {attrs} (q, q, q)  z = ai.coreai.{NAME} {attrs} (q, q, q, true) }}{functions}",
        remove_open_masks,
        1,
        f"{head.partition(' <')[0]} {{ y = ai.coreai.{NAME} {attrs} (q, q, q)  z = ai.coreai.{NAME} {attrs} (q, q, q) }}",
    )
    assert len(model.functions) == 2


@pytest.mark.parametrize("opset", [18, 22, 23])
@pytest.mark.parametrize(("values", "fires"), [(2, True), (4, False)])
def test_every_opset_has_a_body_without_a_mask(opset: int, values: int, fires: bool) -> None:
    """Below opset 23 too; only if keys and values have the same heads."""
    head = f"main (float[b, 4, s, 4] q, float[b, 2, s, 4] k, float[b, {values}, s, 4] v) => (float[b, 4, s, 4] y) <bool[1, 1, 1, 1] true = {{1}}>"
    attrs = ATTRS.format(0.0).replace("is_causal = 0", "is_causal = 1")
    function = f'\n<domain: "ai.coreai", opset_import: ["": {opset}]>\n{NAME} (query, key, value, mask) => (output) {{ output = Add (query, mask) }}'
    text = f"{head} {{ y = ai.coreai.{NAME} {attrs} (q, k, v, true) }}{function}"
    if not fires:
        leaves(text, remove_open_masks, "keys and values may have different heads", opset=opset)
        return
    model = parse(text, opset)
    assert run_passes(model, [remove_open_masks]).total == 1
    (call,) = model.graph
    assert (call.attributes["is_causal"].value, len(call.inputs)) == (0, 3)  # the mask overrode it
    q, k, v = (torch.randn(2, heads, 3, 4) for heads in (4, 2, 2))
    actual = run(model, {"q": q.numpy(), "k": k.numpy(), "v": v.numpy()})
    assert_close(actual, [scaled_dot_product_attention(q, k, v, scale=0.5)])
