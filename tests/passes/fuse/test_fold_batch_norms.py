from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.fuse.fold_batch_norms import fold_batch_norms
from tests.passes.rewriting import fuses, leaves

HEAD = """main (float[n, 1, 3, 3] x) => (float[n, 2, 2, 2] y{more})
  <float[2, 1, 2, 2] w = {{1, 2, 3, 4, -1, -2, 5, 6}}, float[2] b = {{0.5, -1}}, float[2] s = {{2, 3}}, float[2] o = {{1, -1}}, float[2] m = {{0.25, 4}}, float[2] v = {{2, 0.5}}> {{
  c = Conv <strides = [1, 1]> ({conv})  y = {norm}
}}"""
STANDARD = "BatchNormalization <epsilon = 0.01> (c, s, o, m, v)"
COMPOSITE = "ai.coreai.batch_norm <eps = 0.01> (c, s, o, m, v)"
BODY = """
<domain: "ai.coreai", opset_import: ["": 23]>
batch_norm <eps: float> (input, scale, bias, mean, variance) => (output) {
  output = BatchNormalization <epsilon: float = @eps> (input, scale, bias, mean, variance)
}"""


@pytest.mark.parametrize("conv", ["x, w", "x, w, b"])
@pytest.mark.parametrize("norm", [STANDARD, COMPOSITE])
def test_statistics_go_into_the_weights(conv: str, norm: str) -> None:
    scale, mean, var = np.array([2, 3.0]), np.array([0.25, 4.0]), np.array([2, 0.5])
    f = scale / np.sqrt(var + 0.01)
    w = np.array([1, 2, 3, 4, -1, -2, 5, 6.0]).reshape(2, 4) * f[:, None]
    b = (np.array([0.5, -1]) * ("b" in conv) - mean) * f + np.array([1, -1])
    weights, bias = (", ".join(repr(float(np.float32(v))) for v in a.ravel()) for a in (w, b))
    model = fuses(
        HEAD.format(conv=conv, norm=norm, more="") + BODY * (norm == COMPOSITE),
        fold_batch_norms,
        1,
        f"""main (float[n, 1, 3, 3] x) => (float[n, 2, 2, 2] y)
          <float[2, 1, 2, 2] "w.folded.weight" = {{{weights}}}, float[2] "w.folded.bias" = {{{bias}}}> {{
          y = Conv <strides = [1, 1]> (x, "w.folded.weight", "w.folded.bias")
        }}""",
        {"x": np.arange(18, dtype=np.float32).reshape(2, 1, 3, 3)},
    )
    lazy = model.graph.initializers["w.folded.weight"].const_value
    assert isinstance(lazy, ir.LazyTensor)


@pytest.mark.parametrize(
    ("conv", "norm", "more", "reason"),
    [
        ("x, w", STANDARD, ", float[n, 2, 2, 2] c", "something else reads the convolution"),
        ("x, x", STANDARD, "", "weights or statistics are computed"),
        ("x, w", "Relu (c)", "", None),
    ],
)
def test_others_stay(conv, norm, more, reason) -> None:
    leaves(HEAD.format(conv=conv, norm=norm, more=more), fold_batch_norms, reason)
