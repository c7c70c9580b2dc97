from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.passes.engine.match import dtype_of, shape_of
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.fuse.norms import fuse_skip_norms
from tests.passes.rewriting import parse, run, run_passes
from tests.support.tolerances import assert_close

HEAD = '<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1, "ai.coreai.module": 1]>\n'
LAYER = """
<domain: "ai.coreai.module", opset_import: ["": 23, "ai.coreai": 1, "ai.coreai.module": 1]>
Layer (x, w) => (y) {{ heads = Constant <value_ints = [0, 0, 2, 4]> ()  r = Reshape (x, heads)  {body} }}"""
NORM = """
<domain: "ai.coreai", opset_import: ["": 23]>
rms_norm <axes, eps: float> (input, scale) => (output) { output = RMSNormalization <axis = -1, epsilon: float = @eps> (input, scale) }"""
INNER = """
<domain: "ai.coreai.module", opset_import: ["": 23]>
Inner (x) => (y) { y = Neg (x) }"""
MAIN = "main (float[b, s, 8] p, {kind}[{dims}] q, float[8] w) => (float y, {kind} z) {{ y = ai.coreai.module.Layer (p, w)  z = ai.coreai.module.Layer (q, w) }}"


def seen(text: str) -> dict[str, tuple[np.dtype | None, tuple[object, ...] | None]]:
    """Return what a pass is told of the tensors in functions."""
    found = {}

    def look(graph: gs.Graph, why: Why) -> int:
        for node in graph.nodes if isinstance(graph, gs.Function) else ():
            for tensor in (*node.inputs, *node.outputs):
                if not isinstance(tensor, gs.Constant):
                    found[f"{graph.name}.{tensor.name}"] = dtype_of(tensor), shape_of(tensor)
        return 0

    run_passes(parse(text), [look])
    return found


@pytest.mark.parametrize(
    ("dims", "x", "r"),
    [
        ("b, s, 8", ("b", "s", 8), ("b", "s", 2, 4)),
        ("c, s, 8", ("b|c", "s", 8), ("b|c", "s", 2, 4)),
        ("b, 3, 8", ("b", "s|3", 8), ("b", "s|3", 2, 4)),
    ],
)
def test_types_follow_from_all_calls(dims: str, x: tuple[object], r: tuple[object]) -> None:
    text = HEAD + MAIN.format(kind="float", dims=dims) + LAYER.format(body="y = Neg (r)")
    found, float32 = seen(text), np.dtype(np.float32)
    assert found["Layer.x"] == (float32, x)
    assert found["Layer.r"] == found["Layer.y"] == (float32, r)


def test_what_calls_disagree_on_is_not_known() -> None:
    layer = LAYER.format(body="y = Neg (r)")
    found = seen(HEAD + MAIN.format(kind="float16", dims="b, s, 8") + layer)
    assert found["Layer.x"][0] is None
    assert found["Layer.r"][0] is None
    found = seen(HEAD + MAIN.format(kind="float", dims="b, 8") + layer)
    assert found["Layer.x"] == (np.dtype(np.float32), None)


def test_callers_come_before_what_they_call() -> None:
    text = HEAD + MAIN.format(kind="float", dims="b, s, 8")
    layer = LAYER.format(body="y = ai.coreai.module.Inner (r)")
    found = seen(text + INNER + layer)
    assert found["Inner.x"] == (np.dtype(np.float32), ("b", "s", 2, 4))
    assert found == seen(text + layer + INNER)


def test_composites_know_no_types() -> None:
    """Their bodies are made for every call that may come."""
    body = "y = ai.coreai.rms_norm <axes = [-1], eps = 0.01> (x, w)"
    found = seen(HEAD + MAIN.format(kind="float", dims="b, s, 8") + LAYER.format(body=body) + NORM)
    assert found["Layer.y"] == (np.dtype(np.float32), ("b", "s", 8))
    assert found["rms_norm.input"] == (None, None)


def test_layers_in_functions_are_fused_and_stay_without_types() -> None:
    body = "n = Neg (x)  t = Add (x, n)  u = Add (t, x)  y = ai.coreai.rms_norm <axes = [-1], eps = 0.01, version = 1> (u, w)"
    text = HEAD + MAIN.format(kind="float", dims="b, s, 8") + LAYER.format(body=body) + NORM
    # A scale that is an argument is no computed one.
    model = parse(text)
    assert run_passes(model, [fuse_skip_norms]).total == 1
    layer = next(f for f in model.functions.values() if f.name == "Layer")
    assert "skip_rms_norm" in [node.op_type for node in layer]
    values = [*layer.inputs, *(v for node in layer for v in node.outputs)]
    assert all(value.shape is None and value.dtype is None for value in values)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 3, 8)).astype(np.float32) for name in "pq"}
    feeds["w"] = np.ones(8, np.float32)
    assert_close(run(model, feeds), run(parse(text), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [fuse_skip_norms]).total == 0
