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


CODED = """main (float[b, 4, t, 8] q, uint8[n, 4, 2, {key}] ks, float[n, 4, 2, 1] kt, uint8[n, 4, 2, {value}] vs, float[n, 4, 2, 1] vt, int64[b, w] table, int64[b, w] other, bool[b, 1, t, s] mask) => (float[b, 4, t, 6] y) <int64[4] key_dims = {{0, -1, 2, {key}}}, int64[4] dims = {{0, -1, 2, 1}}, int64[4] value_dims = {{0, -1, 2, {value}}}> {{
  uint8[b, w, 4, 2, {key}] kb = Gather <axis = 0> (ks, table)  uint8[b, p, 2, {key}] kr = Reshape (kb, key_dims)  uint8[b, 2, p, {key}] k = Transpose <perm = [0, 2, 1, 3]> (kr)
  float[b, w, 4, 2, 1] cb = Gather <axis = 0> (kt, {scales})  float[b, p, 2, 1] cr = Reshape (cb, dims)  float[b, 2, p, 1] c = Transpose <perm = [0, 2, 1, 3]> (cr)
  uint8[b, w, 4, 2, {value}] vb = Gather <axis = 0> (vs, table)  uint8[b, p, 2, {value}] vr = Reshape (vb, value_dims)  uint8[b, 2, p, {value}] v = Transpose <perm = [0, 2, 1, 3]> (vr)
  float[b, w, 4, 2, 1] db = Gather <axis = 0> (vt, table)  float[b, p, 2, 1] dr = Reshape (db, dims)  float[b, 2, p, 1] d = Transpose <perm = [0, 2, 1, 3]> (dr)
  y = ai.coreai.attention_nbits <scale = 0.5, is_causal = 0, window_size = 0, causal_alignment = "lower_right", softcap = 0.0, bits = {bits}, version = 1> (q, k, c, v, d, mask) }}"""


def coded_text(bits: int, scales: str = "table") -> str:
    return CODED.format(bits=bits, key=bits, value=6 * bits // 8, scales=scales)


@pytest.mark.parametrize("bits", [8, 4])
def test_gathered_codes_stay_in_their_blocks(bits: int) -> None:
    model = parse(coded_text(bits))
    assert run_passes(model, [fuse_paged_attention, *ORDER]).counts["fuse_paged_attention"] == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["paged_attention_nbits"]
    given, rng, wide = feeds(), np.random.default_rng(1), {}
    for name, dim in (("k", 8), ("v", 6)):
        codes = rng.integers(0, 256, (7, 4, 2, dim * bits // 8), np.uint8)
        scales = rng.random((7, 4, 2, 1), np.float32) / 64
        given |= {f"{name}s": codes, f"{name}t": scales}
        halves = codes if bits == 8 else np.concatenate([codes & 15, codes >> 4], -1)
        wide[f"{name}s"] = (halves.astype(np.float32) - 2 ** (bits - 1)) * scales
    (actual,) = run(model, given)
    assert_close(actual, expected({**given, **wide}, 0.0))


def test_codes_and_scales_in_other_blocks() -> None:
    leaves(coded_text(8, "other"), fuse_paged_attention, "keys and values are in other blocks")


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
