from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composites.caches import ATTENTION_NBITS
from coreai_onnx.passes import ORDER
from coreai_onnx.passes.fuse.fuse_attention_nbits import NAME, fuse_attention_nbits
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

EIGHT = """uint8[b, 2, s, 8] {x}i = Identity ({x}c)"""
FOUR = """uint8[b, 2, s, 4] {x}l = BitwiseAnd ({x}c, low)  uint8[b, 2, s, 4] {x}h = BitShift <direction = "RIGHT"> ({x}c, four)
  uint8[b, 2, s, 8] {x}i = Concat <axis = -1> ({x}l, {x}h)"""
TEXT = """main (float[b, 4, t, 8] q, uint8[b, 2, s, {width}] kc, float[b, 2, s, 1] ks, uint8[b, 2, s, {width}] vc, float[b, 2, s, {last}] vs, {mask_type}[b, 1, t, s] mask) => (float[b, 4, t, 8] y) <float zero = {{{zero}.0}}, float other = {{{other}.0}}, uint8 low = {{15}}, uint8 four = {{4}}> {{
  {k}  float[b, 2, s, 8] kf = Cast <to = 1> (ki)  float[b, 2, s, 8] kd = Sub (kf, zero)  float[b, 2, s, 8] k = Mul (kd, ks)
  {v}  float[b, 2, s, 8] vf = Cast <to = 1> (vi)  float[b, 2, s, 8] vd = Sub (vf, other)  float[b, 2, s, 8] v = Mul (vd, vs)
  y = ai.coreai.scaled_dot_product_attention <scale = 0.5, is_causal = {causal}, window_size = {window}, causal_alignment = "{alignment}", softcap = {softcap}, version = 1> (q, k, v{mask}) }}"""
PLAIN = {
    "bits": 8,
    "last": 1,
    "other": None,
    "mask": ", mask",
    "mask_type": "bool",
    "causal": 0,
    "window": 0,
    "softcap": 0.0,
    "alignment": "lower_right",
}


def text(**change: object) -> str:
    given = {**PLAIN, **change}
    bits = given.pop("bits")
    zero = 128 if bits == 8 else 8
    given["other"] = zero if given["other"] is None else given["other"]
    unpacked = EIGHT if bits == 8 else FOUR
    parts = {x: unpacked.format(x=x) for x in "kv"}
    return TEXT.format(**given, **parts, zero=zero, width=bits)


def feeds(bits: int, mask_type: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 3, 8), "ks": (2, 2, 11, 1), "vs": (2, 2, 11, 1), "mask": (2, 1, 3, 11)}
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    given |= {n: np.abs(given[n]) / 64 for n in ("ks", "vs")}
    given |= {n: rng.integers(0, 256, (2, 2, 11, bits), np.uint8) for n in ("kc", "vc")}
    return {**given, "mask": given["mask"] > -0.5} if mask_type == "bool" else given


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"mask_type": "float", "softcap": 2.0},
        {"mask": "", "causal": 1},
        {"mask": "", "causal": 1, "window": 4},
    ],
)
def test_codes_stay_codes(change: dict[str, object], bits: int, opset: int) -> None:
    model = parse(text(bits=bits, **change), opset)
    given = feeds(bits, str(change.get("mask_type", "bool")))
    counts = run_passes(model, [fuse_attention_nbits, *ORDER]).counts
    assert counts[fuse_attention_nbits.__name__] == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["attention_nbits"]
    (actual,) = run(model, given)
    assert_close(actual, expected(given, bits, change))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [fuse_attention_nbits]).total == 0


@pytest.mark.parametrize("which", ["k", "v", "kv"])
def test_rotations_of_queries_and_results(which: str) -> None:
    """Matrices behind keys and values are multiplied by what does not grow with the cache."""
    original, matrices = text(bits=4), dict.fromkeys("kv", np.eye(8, dtype=np.float32))
    for x in which:
        half = np.random.default_rng(1).integers(-4, 5, (8, 8))
        matrices[x] = (half + half.T).astype(np.float32) / 8
        values = f"float[b, 2, s, 8] {x}"
        original = original.replace(f"{values} = Mul", f"{values}r = Mul")
        original = original.replace("  y =", f"  {values} = MatMul ({x}r, {x}m)\n  y =")
        row = ", ".join(map(str, matrices[x].flat))
        original = original.replace("float zero", f"float[8, 8] {x}m = {{{row}}}, float zero")
    model, given = parse(original), feeds(4, "bool")
    assert run_passes(model, [fuse_attention_nbits, *ORDER]).counts["fuse_attention_nbits"] == 1
    assert sorted(node.op_type for node in model.graph) == [*["MatMul"] * len(which), NAME]
    (actual,) = run(model, given)
    result = expected({**given, "q": given["q"] @ matrices["k"]}, 4, {}) @ matrices["v"]
    assert_close(actual, result)


def expected(given: dict[str, np.ndarray], bits: int, change: dict[str, object]) -> np.ndarray:
    """Attention to the values of the codes, in double."""
    tensors = {name: torch.from_numpy(x) for name, x in given.items()}
    wide = {name: x.double() if x.is_floating_point() else x for name, x in tensors.items()}
    result = ATTENTION_NBITS.reference(
        *(wide[name] for name in ("q", "kc", "ks", "vc", "vs")),
        None if change.get("mask") == "" else wide["mask"],
        scale=0.5,
        bits=bits,
        is_causal=change.get("causal", 0),
        window_size=change.get("window", 0),
        softcap=change.get("softcap", 0.0),
    )
    return result.float().numpy()  # type: ignore[no-any-return]  # the reference is any callable


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"other": 8}, None),
        (
            {"mask": "", "causal": 1, "alignment": "upper_left"},
            "the queries are not the last tokens",
        ),
        ({"other": 7}, None),
        ({"last": 8}, None),
    ],
)
def test_it_leaves(change: dict[str, object], reason: str | None) -> None:
    leaves(text(**change), fuse_attention_nbits, reason)
