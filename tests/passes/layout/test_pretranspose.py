from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.layout.pretranspose import (
    pretranspose_integers,
    pretranspose_weights,
)
from tests.passes.rewriting import fuses, leaves, parse, rewrite, run_passes, same_numbers

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


INTEGERS_TEXT = """main (float[n, 2] x) => (float[n, 3] y) <int8[3, 2] w = {1, 2, 3, 4, 5, 6}, float[3] s = {1, 2, 3}, int8[3] z = {0, 1, 2}> {
  d = DequantizeLinear <axis = 0> (w, s, z)  t = Transpose <perm = [1, 0]> (d)  y = MatMul (x, t)
}"""


def test_the_integers_are_transposed() -> None:
    fuses(
        INTEGERS_TEXT,
        pretranspose_integers,
        1,
        """main (float[n, 2] x) => (float[n, 3] y) <int8[3, 2] w = {1, 2, 3, 4, 5, 6}, float[3] s = {1, 2, 3}, int8[3] z = {0, 1, 2}> {
          t_transpose = Transpose <perm = [1, 0]> (w)  t = DequantizeLinear <axis = 1> (t_transpose, s, z)  y = MatMul (x, t)
        }""",
    )
    same_numbers(INTEGERS_TEXT, pretranspose_integers, {"x": np.ones((4, 2), np.float32)})


def test_one_scale_has_no_axis() -> None:
    text = """main (float[n, 2] x) => (float[n, 3] y) <uint8[3, 2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}> {
      d = DequantizeLinear (w, s)  t = Transpose (d)  y = MatMul (x, t)
    }"""
    same_numbers(text, pretranspose_integers, {"x": np.ones((4, 2), np.float32)})


def test_integers_with_two_readers_stay() -> None:
    leaves(
        INTEGERS_TEXT.replace("=> (float[n, 3] y)", "=> (float[n, 3] y, int8[3, 2] v)").replace(
            "y = MatMul (x, t)", "y = MatMul (x, t)  v = Identity (w)"
        ),
        pretranspose_integers,
        "something else reads the integers",
    )


def test_weights_of_blocks_and_of_run_time_stay() -> None:
    leaves(
        """main (float[n, 4] x) => (float[n, 2] y) <int8[2, 4] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2, 2] s = {1, 2, 3, 4}> {
          d = DequantizeLinear <axis = 1, block_size = 2> (w, s)  t = Transpose (d)  y = MatMul (x, t)
        }""",
        pretranspose_integers,
    )
    leaves(
        """main (float[n, 4] x, int8[2, 4] w) => (float[n, 2] y) <float s = {1}> {
          d = DequantizeLinear (w, s)  t = Transpose (d)  y = MatMul (x, t)
        }""",
        pretranspose_integers,
    )
