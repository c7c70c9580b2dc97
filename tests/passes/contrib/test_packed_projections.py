from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.contrib.packed_projections import contrib_packed_projections
from tests.models.zoo import named
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

RNG = np.random.default_rng(0)
SIZES = {"q": 32, "k": 16, "v": 16}


def numbers(name: str, *shape: int) -> str:
    values = RNG.standard_normal(shape).astype(np.float32).ravel()
    return f"float[{', '.join(map(str, shape))}] {name} = {{{', '.join(map(str, values))}}}"


WEIGHTS = ", ".join(numbers(f"{name}_weight", 12, size) for name, size in SIZES.items())
BIASES = ", ".join(numbers(f"{name}_bias", size) for name, size in SIZES.items())
STEPS = ", ".join(
    f"uint8[{size}, 1, 8] {name}_steps = {{{', '.join(map(str, RNG.integers(0, 256, size * 8)))}}}, {numbers(f'{name}_scales', size, 1)}"
    for name, size in SIZES.items()
)
PRODUCTS = "  ".join(f"float[1, s, {n}] {a} = MatMul (x, {a}_weight)" for a, n in SIZES.items())
SUMS = "  ".join(
    f"float[1, s, {n}] {a}_sum = MatMul (x, {a}_weight)  float[1, s, {n}] {a} = Add ({a}_bias, {a}_sum)"
    for a, n in SIZES.items()
)
FEW_BITS = "  ".join(
    f"float[1, s, {n}] {a} = com.microsoft.MatMulNBits <K = 12, N = {n}, bits = 4, block_size = 16> (x, {a}_steps, {a}_scales)"
    for a, n in SIZES.items()
)
TEXT = """<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
main (float[1, s, 12] x, float[1, s, 12] z, int32[1] last, int32 total) => (float[1, s, 32] y{output}) <{weights}> {{
  {products}
  y = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, , , last, total)
}}"""


def text(products: str = PRODUCTS, weights: str = WEIGHTS, output: str = "") -> str:
    return TEXT.format(products=products, weights=weights, output=output)


@pytest.mark.parametrize(
    ("products", "weights", "ops"),
    [
        (PRODUCTS, WEIGHTS, ["MatMul"]),
        (SUMS, f"{WEIGHTS}, {BIASES}", ["MatMul", "Add"]),
        (FEW_BITS, STEPS, ["MatMulNBits"]),
    ],
)
def test_projections_are_one_product(products: str, weights: str, ops: list[str]) -> None:
    written = text(products, weights)
    model = parse(written)
    report = run_passes(model, [contrib_packed_projections, remove_dead_code])
    assert report.counts["contrib_packed_projections"] == 1
    assert [node.op_type for node in model.graph] == [*ops, "GroupQueryAttention"]
    assert model.graph[-1].inputs[1] is None
    assert model.graph[-1].inputs[2] is None
    assert any(name.startswith("q_") and "+k_" in name for name in model.graph.initializers)
    for length in (1, 5):
        feeds = {
            "x": RNG.standard_normal((1, length, 12)).astype(np.float32),
            "z": np.zeros((1, length, 12), np.float32),
            "last": np.array([length - 1], np.int32),
            "total": np.array(length, np.int32),
        }
        assert_close(run(model, feeds), run(parse(written), feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [contrib_packed_projections]).total == 0


OTHERS = "queries, keys and values must be products without other readers"
UNLIKE = "the products must have the same operator and input"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (text(PRODUCTS.replace("MatMul (x, k_weight)", "MatMul (z, k_weight)")), UNLIKE),
        (text(PRODUCTS.replace("k = MatMul (x, k_weight)", "t = MatMul (x, k_weight)  float[1, s, 16] k = Neg (t)")), OTHERS),
        (text(SUMS.replace("k = Add (k_bias, k_sum)", "k = Add (k_sum, k_sum)"), f"{WEIGHTS}, {BIASES}"), OTHERS),
        (text(output=", float[1, s, 16] k"), OTHERS),
        (text(PRODUCTS.replace("v_weight", "k_weight")), OTHERS),  # one weight, stored once
        (text(PRODUCTS.replace("v = MatMul (x, v_weight)", "t = MatMul (x, v_weight)  float[1, s, 16] v = Add (t, v_bias)"), f"{WEIGHTS}, {BIASES}"), UNLIKE),
    ],
)  # fmt: skip
def test_others_stay(written: str, reason: str) -> None:
    leaves(written, contrib_packed_projections, reason)


def test_what_is_packed_already_is_not_looked_at() -> None:
    packed = PRODUCTS.replace("MatMul (x, q_weight)", "MatMul (x, q_weight)")
    written = text(packed).replace("(q, k, v, , ,", "(q, , , , ,")
    leaves(written, contrib_packed_projections)


def test_a_decoder_has_few_nodes_and_torchs_numbers() -> None:
    config = named("llama").module().config
    config.use_cache = False
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    batch, length = torch.export.Dim("batch"), torch.export.Dim("seq")
    ids = torch.randint(4, config.vocab_size, (2, 7))
    program = coreai_onnx.convert(
        model,
        kwargs={"input_ids": ids},
        dynamic_shapes={"input_ids": {0: batch, 1: length}},
        optimize=False,
    ).optimize(target="contrib")
    ops = [node.op_type for node in program.model.graph]
    assert ops.count("GroupQueryAttention") == 2
    assert len(ops) <= 34  # 1.1 times those of mobius-onnx for the same model
    for shape in ((2, 7), (1, 1), (3, 20)):
        ids = torch.randint(4, config.vocab_size, shape)
        with torch.no_grad():
            expected = model(input_ids=ids).logits
        assert_close(list(program.run(ids, kernels=False)), [expected])
