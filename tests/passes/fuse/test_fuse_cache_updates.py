from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composites.caches import kv_cache_update
from coreai_onnx.passes import ORDER
from coreai_onnx.passes.engine.bodies import bodies_of
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.fuse.fuse_cache_updates import fuse_cache_updates
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

HEAD = "main (float[b, 2, 8, 4] cache, float[t, b, 2, 4] u, int64{places} at) => (float[b, 2, 8, 4] y) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] v0 = {{0}}, int64[3] odd = {{0, 1, 3}}, int64[3] even = {{2, 3, 4}}, int64[1] last = {{-1}}> {{"
RAMP = "  int64[1] n = Shape <start = 0, end = 1> (u)  m = Squeeze (n, v0)  int64[t] r = Range (zero, m, one)"
BODY = """ float[8, b, 2, 4] c = Transpose <perm = [2, 0, 1, 3]> (cache)  {index}
  s = ScatterND <reduction = {reduction}> (c, i, u)  y = Transpose <perm = [{back}]> (s) }}"""
PLAIN = {"reduction": '"none"', "back": "1, 2, 0, 3", "places": ""}
BEFORE = f"{RAMP}  int64[t] p = Add (r, at)  int64[t, 1] i = Unsqueeze (p, last)"


def text(index: str = BEFORE, **change: str) -> str:
    return (HEAD + BODY).format(index=index, **{**PLAIN, **change})


def feeds(tokens: int, position: int | list[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"cache": (3, 2, 8, 4), "u": (tokens, 3, 2, 4)}
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return {**given, "at": np.array(position, np.int64)}


def fused(written: str, tokens: int, position: int | list[int], opset: int = 23) -> ir.Model:
    """Fuse, and hold the result to the numbers before."""
    model = parse(written, opset)
    assert run_passes(model, [fuse_cache_updates, *ORDER]).counts[fuse_cache_updates.__name__] == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    ops = {node.op_type for node in model.graph}
    assert ops >= {"kv_cache_update", "Transpose"}
    assert not ops & {"ScatterND", "Unsqueeze"}
    given = feeds(tokens, position)
    for expected, actual in zip(run(parse(written, opset), given), run(model, given), strict=True):
        assert_close(actual, expected)
        assert actual.tobytes() == expected.tobytes()
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [fuse_cache_updates]).total == 0
    return model


@pytest.mark.parametrize("opset", [18, 23, 24])
def test_tokens_that_follow_each_other(opset: int) -> None:
    (function,) = fused(text(), 3, 4, opset).functions.values()
    assert ("TensorScatter" in {node.op_type for node in function}) == (opset >= 24)


def test_one_place_is_read_as_it_is() -> None:
    index = "int64[1, 1] i = Unsqueeze (at, last)"
    fused(text(index, places="[1]").replace("float[t,", "float[1,"), 1, [7])


def test_constant_places() -> None:
    fused(text("int64[3, 1] i = Unsqueeze (even, last)"), 3, 0)


@pytest.mark.parametrize(
    ("index", "change", "reason"),
    [
        ("int64[t, 1] i = Unsqueeze (at, last)", {"places": "[t]"}, "the positions may not be consecutive"),
        ("int64[3, 1] i = Unsqueeze (odd, last)", {}, "the positions may not be consecutive"),
        (BEFORE, {"reduction": '"add"'}, None),
        (BEFORE, {"back": "2, 1, 0, 3"}, None),
    ],
)  # fmt: skip
def test_others_stay(index: str, change: dict[str, str], reason: str | None) -> None:
    written = text(index, **change)
    if "2, 1, 0, 3" in written:
        written = written.replace("(float[b, 2, 8, 4] y)", "(float[2, b, 8, 4] y)")
    leaves(written, fuse_cache_updates, reason)


def test_another_body_is_left_alone() -> None:
    other = '\n<domain: "ai.coreai", opset_import: ["": 23]>\nkv_cache_update (c, u, p) => (y) { y = Identity (c) }'
    leaves(text() + other, fuse_cache_updates, "the model's kv_cache_update has another body")


@pytest.mark.parametrize("opset", [18, 23, 24])
@pytest.mark.parametrize("position", [2, [3], [0, 3, 2]])
def test_the_body_is_the_reference(opset: int, position: int | list[int]) -> None:
    rank = "" if isinstance(position, int) else f"[{len(position)}]"
    model = parse(
        f"main (float[b, 2, 8, 4] c, float[b, 2, t, 4] u, int64{rank} at) => (float[b, 2, 8, 4] y) {{ y = ai.coreai.kv_cache_update <version = 1> (c, u, at) }}",
        opset,
    )

    def provide(graph: gs.Graph, why: Why) -> int:
        bodies = bodies_of(graph)
        missing = bodies is not None and bodies.named("kv_cache_update") is None
        return int(
            missing
            and bodies.provide_composite("kv_cache_update", np.dtype(np.float32)) is not None
        )

    assert run_passes(model, [provide]).total == 1
    cache, update, at = torch.randn(3, 2, 8, 4), torch.randn(3, 2, 5, 4), torch.tensor(position)
    actual = run(model, {"c": cache.numpy(), "u": update.numpy(), "at": at.numpy()})
    assert_close(actual, [kv_cache_update(cache, update, at)])
