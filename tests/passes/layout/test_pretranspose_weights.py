from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.layout.pretranspose import pretranspose_weights
from tests.passes.rewriting import leaves, parse, rewrite, same_numbers

TEXT = """main (float[n, 2] x) => (float[n, 3] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
  t = Transpose <perm = [1, 0]> (w)  y = MatMul (x, t)
}"""


def test_a_weight_is_stored_as_it_is_used() -> None:
    model = parse(TEXT)
    assert run_passes(model, [pretranspose_weights]).total == 1
    (weight,) = [v for v in model.graph.initializers.values() if v.uses()]
    assert weight.name == "w.T"
    assert isinstance(weight.const_value, ir.LazyTensor)
    np.testing.assert_array_equal(weight.const_value.numpy(), [[1, 3, 5], [2, 4, 6]])
    same_numbers(TEXT, pretranspose_weights, {"x": np.ones((4, 2), np.float32)})


def test_two_readers_share_one_transposed_weight() -> None:
    rewrite(
        """main (float[n, 2] x) => (float[n, 3] y, float[n, 3] z) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
          t = Transpose (w)  y = MatMul (x, t)  u = Transpose <perm = [1, 0]> (w)  z = MatMul (x, u)
        }""",
        pretranspose_weights,
        2,
        """main (float[n, 2] x) => (float[n, 3] y, float[n, 3] z)
          <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2, 3] "w.T" = {1, 3, 5, 2, 4, 6}> {
          y = MatMul (x, "w.T")  z = MatMul (x, "w.T")
        }""",
    )


def test_a_tied_weight_is_stored_once() -> None:
    leaves(
        """main (int64[n] i, float[n, 2] x) => (float[n, 2] e, float[n, 3] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
          e = Gather (w, i)  t = Transpose <perm = [1, 0]> (w)  y = MatMul (x, t)
        }""",
        pretranspose_weights,
        "something else reads the weight",
    )
