"""Weights of modules in a graph, whatever the names of the initializers are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.gguf.decoder_weights import DecoderWeights
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix

GRAPH = """
<ir_version: 10, opset_import: ["" : 21, "ai.coreai" : 1]>
main (float[1, 2] x) => (float[1, 2] f) <
    float[2, 2] shared = {1, 2, 3, 4}, float16[2] half = {15360, 16384}, float[2] one = {1, 1},
    float[2] bias = {5, 6}, uint8[2, 1, 1] codes = {1, 2}, float16[2, 1] scales = {15360, 15360},
    int64[2] order = {1, 0}
> {
    [a_MatMul] a = MatMul (x, shared)
    [a_Add] b = Add (a, bias)
    [b_Gemm] c = Gemm <transB = 1> (b, shared, bias)
    [norm_Cast] wide = Cast <to = 1> (half)
    [norm_Add] more = Add (wide, one)
    [norm_Mul] d = ai.coreai.rms_norm (c, more)
    [few_linear_nbits] e = ai.coreai.linear_nbits <bits = 4, group_size = 2> (d, codes, scales)
    [sorted_Gather] g = Gather <axis = 1> (e, order)
    [sorted_linear_nbits] f = ai.coreai.linear_nbits <bits = 4> (g, codes, scales)
}
"""


@pytest.fixture
def weights() -> DecoderWeights:
    graph = ir.from_onnx_text(GRAPH).graph
    for node in graph:
        assert node.name is not None
        node.name = node.name.replace("_", ".", 1)  # the text format has no points in names
    return DecoderWeights(graph, Path("model.onnx"))


def test_layers_may_share_an_initializer(weights: DecoderWeights) -> None:
    assert np.array_equal(weights.weight("a"), [[1, 3], [2, 4]])  # type: ignore[arg-type]
    assert np.array_equal(weights.weight("b"), [[1, 2], [3, 4]])  # type: ignore[arg-type]
    for module in ("a", "b"):
        assert np.array_equal(weights.bias(module), [5, 6])  # type: ignore[arg-type]
    assert weights.bias("few") is None
    assert weights.weight("nothing") is None


def test_weights_of_norms_are_those_that_they_multiply_by(weights: DecoderWeights) -> None:
    assert np.array_equal(weights.weight("norm"), [2, 3])  # type: ignore[arg-type]


def test_weights_of_few_bits_are_packed(weights: DecoderWeights) -> None:
    matrix = weights.weight("few")
    assert isinstance(matrix, PackedMatrix)
    assert (matrix.bits, matrix.group_size) == (4, 2)
    with pytest.raises(ModelSourceError, match="the inputs of sorted are reordered"):
        weights.weight("sorted")
