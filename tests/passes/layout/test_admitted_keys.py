from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.layout.admitted_keys import admitted_keys
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

MAIN = """main (float[b, 4, t, 8] q, float[b, {k}, s, 8] kc, float[b, {k}, s, 8] vc, float[b, {k}, t, 8] x, int64 p, {mask} m)
  => (float[b, 4, t, 8] y{more}) {{
  float[b, {k}, s, 8] k = {keys}
  float[b, {k}, s, 8] v = ai.coreai.kv_cache_update <version = 1> (vc, x, p)
  y = ai.coreai.scaled_dot_product_attention <scale = 0.5, version = 1> (q, k, v, m)
  {second}
}}
<domain: "ai.coreai", opset_import: ["": 23]>
kv_cache_update (cache, update, position) => (output) {{
  t = Shape <start = 2, end = 3> (update)  two = Constant <value_ints = [2]> ()  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()  p = Reshape (position, one)  after = Add (p, t)
  last = Constant <value_ints = [9223372036854775807]> ()
  a = Slice (cache, zero, p, two)  c = Slice (cache, after, last, two)  output = Concat <axis = 2> (a, update, c)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
scaled_dot_product_attention <scale: float> (query, key, value, mask) => (output) {{
  a = Attention <scale: float = @scale> (query, key, value, mask)
  last = Constant <value_ints = [-1]> ()  zero = Constant <value_float = 0.0> ()  like = CastLike (zero, a)
  f = Cast <to = 1> (mask)  r = ReduceMax (f, last)  some = Greater (r, zero)  output = Where (some, a, like)
}}"""
PLAIN = {
    "k": 4,
    "mask": "bool[b, 1, t, s]",
    "keys": "ai.coreai.kv_cache_update <version = 1> (kc, x, p)",
    "more": "",
    "second": "",
}


def text(**change: object) -> str:
    return MAIN.format(**{**PLAIN, **change})


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("admitted", ["none", "first", "middle", "all"])
def test_bodies_attend_to_what_the_mask_admits(heads: int, tokens: int, admitted: str) -> None:
    written = text(k=heads)
    model = parse(written)
    assert run_passes(model, [admitted_keys]).total == 1
    body = next(f for f in model.functions.values() if "attention" in f.name)
    (attention,) = [node for node in body if node.op_type == "Attention"]
    cut = {x.name for node in body if node.op_type == "Slice" for x in node.outputs}
    assert cut == {x.name for x in attention.inputs[1:] if x is not None}
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("kc", "vc"), (2, heads, 9, 8))
    shapes |= {"q": (2, 4, tokens, 8), "x": (2, heads, tokens, 8)}
    feeds = {name: rng.standard_normal(dims).astype(np.float32) for name, dims in shapes.items()}
    feeds["p"] = np.array(2)
    feeds["m"] = np.zeros((2, 1, tokens, 9), np.bool_)
    columns = {"none": [], "first": [0], "middle": [1, 6], "all": list(range(9))}[admitted]
    feeds["m"][1, 0, -1, columns] = True
    assert_close(run(model, feeds), run(parse(written), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [admitted_keys]).total == 0


def test_keys_behind_the_last_are_not_read() -> None:
    model = parse(text())
    run_passes(model, [admitted_keys])
    feeds: dict[str, np.ndarray] = {
        name: np.ones((1, 4, 9, 8), np.float32) for name in ("kc", "vc")
    }
    feeds |= {name: np.ones((1, 4, 2, 8), np.float32) for name in ("q", "x")}
    feeds |= {"p": np.array(0), "m": np.arange(9) < np.array([1, 2]).reshape(1, 1, 2, 1)}
    feeds["kc"][:, :, 2:] = feeds["vc"][:, :, 2:] = np.nan
    assert_close(run(model, feeds), [np.ones((1, 4, 2, 8), np.float32)])


@pytest.mark.parametrize(
    "change",
    [
        {"keys": "Neg (kc)"},
        {"mask": "float[b, 1, t, s]"},
        {"mask": "bool[b, 1, t, 1]"},
        {"mask": "bool[t, s]"},
        {
            "more": ", float[b, 4, t, 8] z",
            "second": "z = ai.coreai.scaled_dot_product_attention <scale = 0.5, version = 1> (q, kc, v, m)",
        },
    ],
)
def test_others_stay(change: dict[str, object]) -> None:
    reason = "keys of a call are not those of a cache with a mask of booleans"
    leaves(text(**change), admitted_keys, None if "keys" in change else reason)
