from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.passes import ORDER
from coreai_onnx.passes.fuse.fuse_paged_attention import fuse_paged_attention
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

TEXT = """main (float[b, 4, t, 8] q, float[n, {tokens}, 2, 8] ks, float[n, {tokens}, 2, 6] vs, int64[b, w] table, int64[b, w] other, {mask_type}[b, 1, t, s] mask) => (float[b, 4, t, 6] y) <int64[4] dims = {{0, -1, 2, 8}}, int64[4] value_dims = {{0, -1, 2, 6}}> {{
  float[b, w, {tokens}, 2, 8] kb = Gather <axis = 0> (ks, table)  float[b, p, 2, 8] kr = Reshape (kb, dims)  float[b, 2, p, 8] k = Transpose <perm = [{perm}]> (kr)
  float[b, w, {tokens}, 2, 6] vb = Gather <axis = 0> (vs, {values})  float[b, p, 2, 6] vr = Reshape (vb, value_dims)  float[b, 2, p, 6] v = Transpose <perm = [0, 2, 1, 3]> (vr)
  y = ai.coreai.scaled_dot_product_attention <scale = 0.5, is_causal = {causal}, window_size = 0, causal_alignment = "lower_right", softcap = {softcap}, version = 1> (q, k, v{mask}) }}"""
PLAIN = {
    "tokens": 4,
    "values": "table",
    "perm": "0, 2, 1, 3",
    "causal": 0,
    "softcap": 0.0,
    "mask": ", mask",
    "mask_type": "bool",
}


def text(**change: object) -> str:
    return TEXT.format(**{**PLAIN, **change})


def feeds(mask_type: str = "bool") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 3, 8), "ks": (7, 4, 2, 8), "vs": (7, 4, 2, 6), "mask": (2, 1, 3, 12)}
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    if mask_type == "bool":
        given["mask"] = given["mask"] > -0.5
    table = np.array([[3, 1, 6], [0, 5, 1]])
    return {**given, "table": table, "other": table}


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("mask_type", ["bool", "float"])
def test_gathered_keys_and_values_stay_in_their_blocks(
    mask_type: str, softcap: float, opset: int
) -> None:
    model = parse(text(mask_type=mask_type, softcap=softcap), opset)
    counts = run_passes(model, [fuse_paged_attention, *ORDER]).counts
    assert counts[fuse_paged_attention.__name__] == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["paged_attention"]
    given = feeds(mask_type)
    (actual,) = run(model, given)
    assert_close(actual, expected(given, softcap))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [fuse_paged_attention]).total == 0


def expected(given: dict[str, np.ndarray], softcap: float) -> np.ndarray:
    """Attention of each row to its keys, in double."""
    table, group = given["table"], 2
    k, v = (given[n][table].reshape(2, 12, 2, -1).astype(np.float64) for n in ("ks", "vs"))
    result = np.zeros((2, 4, 3, 6))
    for b, h in np.ndindex(2, 4):
        scores = given["q"][b, h].astype(np.float64) * 0.5 @ k[b, :, h // group].T
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        mask = given["mask"][b, 0]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        result[b, h] = weights / weights.sum(-1, keepdims=True) @ v[b, :, h // group]
    return result.astype(np.float32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"values": "other"}, "keys and values are in other blocks"),
        ({"mask": "", "causal": 1}, "the positions of queries are not known without a mask"),
        ({"tokens": 6}, None),
        ({"perm": "0, 2, 3, 1"}, None),
    ],
)
def test_it_leaves(change: dict[str, object], reason: str | None) -> None:
    leaves(text(**change), fuse_paged_attention, reason)
