"""Mixtures of experts become one MoE: where its result is equal, and how rows are interleaved."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.contrib.moe import ExpertBlock, contrib_moe, in_turns
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

EXPERTS, LANES, HIDDEN = 4, 6, 3


ROUTING = "p = Softmax <axis = -1> (r)  float[n, 2] t, int64[n, 2] e = TopK <axis = -1> (p, two)"


SUMMED = "  o = ReduceSum (t, last)  float[n, 2] w = Div (t, o)"


PLAIN = {
    "routing": "float[n, 4] " + ROUTING + SUMMED,
    "activation": "float[m, 3] h = ai.coreai.swiglu (a, b)",
    "first": "", "second": "", "attrs": "num_batch_axes = 0, transpose_rhs = 1", "dims": "2, 1", "total": "float[n, 6]", "rows": "-1, 2, 1, 3",
}  # fmt: skip


TEXT = """main (float[n, 6] before, float[n, 4] r{inputs}) => (float[n, 6] y)
  <int64[1] two = {{2}}, int64[1] last = {{-1}}, int64[1] axis = {{2}}, int64[1] one = {{1}}, int64[4] apart = {{-1, 1, 1, 6}},
   int64[2] flat = {{-1, 6}}, int64[4] rows = {{{rows}}}, int64[2] halves = {{3, 3}}{weights}> {{
  {routing}  float[n, 6] x = Neg (before)
  float[n, 1, 1, 6] q = Reshape (x, apart)  float[n, 2, 1, 6] g = ai.coreai.gather_mm <{attrs}> (q, up, , e)
  float[m, 6] f = Reshape (g, flat)  float[m, 3] a, float[m, 3] b = Split <axis = 1> (f, halves)
  {activation}  float[n, {dims}, 3] k = Reshape (h, rows)
  float[n, {dims}, 6] d = ai.coreai.gather_mm <{attrs}> (k, down, , e)
  float[n, 2, 6] s = Squeeze (d, axis)  float[n, 2, 1] v = Unsqueeze (w, axis)
  float[n, 2, 6] z = Mul (s, v)  {total} total = ReduceSum <keepdims = 0> (z, one)  y = Neg (total)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
swiglu (gate, up) => (output) {{ s = Sigmoid (gate)  p = Mul (gate, s)  output = Mul (p, up) }}
<domain: "ai.coreai", opset_import: ["": 23]>
gather_mm <transpose_rhs> (lhs, rhs, lhs_indices, rhs_indices) => (output) {{
  chosen = Gather (rhs, rhs_indices)  turned = Transpose <perm = [0, 1, 3, 2]> (chosen)  output = MatMul (lhs, turned) }}"""


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


UP, DOWN = numbers((EXPERTS, 2 * HIDDEN, LANES), 1), numbers((EXPERTS, LANES, HIDDEN), 2)


def text(*, constant: bool = True, **change: str) -> str:
    names = {**PLAIN, **change}
    written = {
        "up": f"float[4, 6, 6] up = {{{', '.join(map(str, UP.ravel()))}}}",
        "down": f"float[4, 6, 3] down = {{{', '.join(map(str, DOWN.ravel()))}}}",
    }
    weights = "".join(f", {one}" for one in written.values()) if constant else ""
    inputs = "" if constant else ", float[4, 6, 6] up, float[4, 6, 3] down"
    return TEXT.format(**names, weights=weights, inputs=inputs)


@pytest.mark.parametrize(
    ("routing", "normalized"),
    [(ROUTING + SUMMED, 1), (ROUTING.replace("float[n, 2] t,", "float[n, 2] w,"), 0)],
)
def test_experts_are_onnxruntimes(routing: str, normalized: int) -> None:
    written = text(routing="float[n, 4] " + routing)
    model = parse(written)
    assert run_passes(model, [contrib_moe, remove_dead_code]).counts["contrib_moe"] == 1
    moe = {node.op_type: node for node in model.graph}["MoE"]
    assert moe.attributes["k"].value == 2
    assert moe.attributes["normalize_routing_weights"].value == 1
    others = {"Neg", "Reshape", "MoE"} | (
        set() if normalized else {"Softmax", "TopK", "ReduceSum", "Mul"}
    )
    assert {node.op_type for node in model.graph} == others
    # A Neg before it and after it, so that the op may write its result over the tokens.
    for count in (1, 5):
        feeds = {"before": numbers((count, LANES), 3), "r": numbers((count, EXPERTS), 4)}
        assert_close(run(model, feeds), run(parse(written), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [contrib_moe]).total == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activation": "float[m, 3] h = Mul (a, b)"}, "the activation must be swiglu"),
        ({"activation": "float[m, 3] h = ai.coreai.swiglu (b, a)"}, "gate and up must be one product"),
        ({"attrs": "num_batch_axes = 1, transpose_rhs = 1"}, "the products must have one matrix per token and expert"),
        ({"rows": "-1, 2, 1, 3", "dims": "2, c"}, "the products must have one matrix per token and expert"),
        ({"routing": "float[n, 4] " + (ROUTING + SUMMED).replace("Softmax <axis = -1>", "Sigmoid")}, "the experts are not chosen by a Softmax and a TopK"),
        ({"routing": "float[n, 4] " + (ROUTING + SUMMED).replace("TopK <axis", "TopK <largest = 0, axis")}, "the experts are not chosen by a Softmax and a TopK"),
        ({"routing": "float[n, 4] " + ROUTING + "  float[n, 2] w = Exp (t)"}, "the experts are not chosen by a Softmax and a TopK"),
    ],
)  # fmt: skip
def test_others_stay(change: dict[str, str], reason: str) -> None:
    leaves(text(**change), contrib_moe, reason)


def test_weights_that_are_not_constant_stay() -> None:
    leaves(text(constant=False), contrib_moe, "the weights are not constant")


def test_other_sums_are_not_looked_at() -> None:
    leaves(
        text(total="float[n, 1, 6]")
        .replace("keepdims = 0", "keepdims = 1")
        .replace("(float[n, 6] y)", "(float[n, 1, 6] y)"),
        contrib_moe,
    )


def tensor(name: str, *shape: int | str, dtype: type = np.float32) -> gs.Variable:
    return gs.Variable(name, np.dtype(dtype), list(shape))


def block(*, rows: int | str = 2) -> ExpertBlock:
    """Return a block of 2 experts per token, 6 lanes and 3 hidden values."""
    indices = tensor("e", "n", 2, dtype=np.int64)
    ends = [tensor("x", "n", 1, 1, 6), tensor("a", "n", 2, 1, 6)]
    inner = [tensor("h", "n", rows, 1, 3), tensor("d", "n", 2, 1, 6)]
    up, down = (
        gs.Node("gather_mm", inputs=[x, tensor("w"), tensor("none"), indices], outputs=[y])
        for x, y in (ends, inner)
    )
    total = gs.Node("ReduceSum", inputs=[tensor("z", "n", 2, 6)], outputs=[tensor("y", "n", 6)])
    return ExpertBlock(total, up, down, tensor("v", "n", 2, 1))


@pytest.mark.parametrize("inner", [(), (5,), (4, 3)])
def test_gate_and_up_rows_take_turns(inner: tuple[int, ...]) -> None:
    values = np.arange(2 * 6 * np.prod(inner, dtype=int)).reshape(2, 6, *inner)
    turned = in_turns(values)
    assert np.array_equal(turned[:, 0::2], values[:, :3])
    assert np.array_equal(turned[:, 1::2], values[:, 3:])


def test_a_block_knows_its_sizes() -> None:
    found = block()
    assert (found.count, found.chosen) == ("n", 2)
    assert found.is_float32()
    assert not found.is_float32(found.experts)


def test_rows_that_are_no_pairs_of_token_and_expert_are_seen() -> None:
    assert block().is_laid_out(6, 3)
    assert not block().is_laid_out(6, 4)
    assert not block(rows="k").is_laid_out(6, 3)
