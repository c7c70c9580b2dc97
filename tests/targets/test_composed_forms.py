"""Operators that are newer than opset 18, as older ones: the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.model.inventory import op_histogram
from coreai_onnx.passes.targets import make_portable
from coreai_onnx.targets.composed_forms import COMPOSED
from tests.passes.rewriting import parse
from tests.support.tolerances import assert_close

QKV = "float[2, {heads}, 5, 8] q, float[2, 4, 7, 8] k, float[2, 4, 7, 8] v"
ATTENTION = (
    "main (" + QKV + "{mask}) => (float[2, {heads}, 5, 8] y) {{ y = Attention <{how}> ({names}) }}"
)
HOW = "scale = 0.3"


def attention(how: str = HOW, heads: int = 4, mask: str = "", zeroed: bool = False) -> str:
    names = "q, k, v" + (", mask" if mask else "")
    text = ATTENTION.format(
        how=how, heads=heads, mask=f", {mask} mask" if mask else "", names=names
    )
    if zeroed:  # as the body of the composite does
        text = (
            text.replace("y = Attention", "a = Attention")
            .replace("}", " zero = CastLike (q, a) y = Where (keep, a, zero) }")
            .replace(") =>", ", bool[5, 1] keep) =>")
        )
    return text


CASES = {
    "plain": attention(),
    "groups": attention(heads=8),
    "causal": attention(f"{HOW}, is_causal = 1"),
    "softcap": attention(f"{HOW}, softcap = 2.0", 8),
    "without scale": attention("is_causal = 1"),
    "bool mask": attention(mask="bool[2, 1, 5, 7]"),
    "float mask": attention(mask="float[2, 1, 5, 7]"),
    "zeroed": attention(mask="bool[2, 1, 5, 7]", zeroed=True),
    "zeroed bias": attention(mask="float[2, 1, 5, 7]", heads=8, zeroed=True),
    "rows": "main (float[2, 5, 32] q, float[2, 7, 32] k, float[2, 7, 32] v) => (float[2, 5, 32] y) "
    "{ y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v) }",
    "rms": "main (float[2, 5, 8] x, float[8] w) => (float[2, 5, 8] y) "
    "{ y = RMSNormalization <epsilon = 0.01> (x, w) }",
    "rotary": "main (float[2, 4, 5, 8] x, float[2, 5, 4] c, float[2, 5, 4] s) => "
    "(float[2, 4, 5, 8] y) { y = RotaryEmbedding (x, c, s) }",
    "gelu": "main (float[5, 8] x) => (float[5, 8] y) { y = Gelu (x) }",
    "gelu tanh": 'main (float[5, 8] x) => (float[5, 8] y) { y = Gelu <approximate = "tanh"> (x) }',
    "swish": "main (float[5, 8] x) => (float[5, 8] y) { y = Swish <alpha = 0.5> (x) }",
}


def outputs(model: ir.Model) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    feeds = {
        one.name: rng.random(one.shape) < 0.6
        if "bool" in one.type
        else rng.standard_normal(one.shape).astype(np.float32)
        for one in session.get_inputs()
    }
    results: list[np.ndarray] = session.run(None, feeds)
    return results


@pytest.mark.parametrize("name", CASES)
def test_older_operators_compute_the_same(name: str) -> None:
    model = parse(CASES[name], 24 if name == "swish" else 23)
    expected = outputs(model)
    assert make_portable(model, "cuda") > 0
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert model.graph.opset_imports == {"": 18}
    assert not COMPOSED & set(op_histogram(model))
    assert_close(outputs(model), expected)


def test_the_attention_of_a_composite_needs_few_nodes() -> None:
    model = parse(CASES["zeroed"])
    make_portable(model, "cuda")
    # scale, product, mask, softmax, product, and the Where after it
    assert sum(op_histogram(model)[op] for op in ("MatMul", "Softmax", "Where", "Transpose")) == 6
    assert "Shape" not in op_histogram(model)
