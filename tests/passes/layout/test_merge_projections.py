from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes import LAYOUT, ORDER
from coreai_onnx.passes.layout.merge_projections import merge_projections
from tests.passes.rewriting import fuses, leaves, parse, run_passes

W = "<float[2, 2] q = {1, 2, 3, 4}, float[2, 1] k = {5, 6}, float[2] b = {7, 8}>"
WITH = f"""main (float[n, s, 2] x) => (float[n, s, 2] y, float[n, s, 1] z) {W} {{
  a = MatMul (x, q)  y = Add (a, b)  z = MatMul (x, k)
}}"""


def test_weights_and_biases_are_joined() -> None:
    model = fuses(
        WITH,
        merge_projections,
        1,
        """main (float[n, s, 2] x) => (float[n, s, 2] y, float[n, s, 1] z)
          <float[2, 3] "q+k" = {1, 2, 5, 3, 4, 6}, float[3] b_1 = {7, 8, 0}, int64[2] a_add_sizes = {2, 1}> {
          a_matmul = MatMul (x, "q+k")  a_add = Add (a_matmul, b_1)
          y, z = Split <axis = -1> (a_add, a_add_sizes)
        }""",
        {"x": np.array([[[1, 2]], [[3, -4]]], np.float32)},
    )
    assert isinstance(model.graph.initializers["q+k"].const_value, ir.LazyTensor)


def test_a_shared_weight_stays_alone() -> None:
    leaves(
        """main (float[n, 2] x, float[n, 2] u) => (float[n, 2] y, float[n, 2] z, float[n, 2] v)
          <float[2, 2] q = {1, 2, 3, 4}, float[2, 2] k = {5, 6, 7, 8}> {
          y = MatMul (x, q)  z = MatMul (x, k)  v = MatMul (u, k)
        }""",
        merge_projections,
        "something else reads the weight",
    )


def test_other_inputs_other_layers() -> None:
    leaves(
        """main (float[n, 2] x, float[n, 2] u) => (float[n, 2] y, float[n, 2] z)
          <float[2, 2] q = {1, 2, 3, 4}, float[2, 2] k = {5, 6, 7, 8}> {
          y = MatMul (x, q)  z = MatMul (u, k)
        }""",
        merge_projections,
    )


def test_nothing_is_read_before_the_model_is_written() -> None:
    model = parse(WITH)
    reads = []
    q = model.graph.initializers["q"]
    values = q.const_value.numpy()

    def read() -> ir.Tensor:
        reads.append(1)
        return ir.tensor(values, name="q")

    q.const_value = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape([2, 2]), name="q")
    assert run_passes(model, [*ORDER, *LAYOUT]).counts["merge_projections"] == 1
    assert reads == []
