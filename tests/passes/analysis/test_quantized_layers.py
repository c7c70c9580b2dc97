"""Tests of layers and products around which onnxruntime selects integer kernels."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.analysis.quantized_layers import (
    has_other_bias_scale,
    obstacle,
    quantized_rows,
    second_factor,
    steps_of,
    sum_scales,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse


def constant(values: object, dtype: type = np.float32) -> gs.Constant:
    return gs.Constant("c", np.array(values, dtype))


def made(op: str, inputs: list[gs.Tensor], dtype: type = np.float32, **attrs: object) -> gs.Tensor:
    output = gs.Variable(f"{op}_{id(inputs)}", dtype, inputs[0].shape)
    gs.Node(op, op, dict(attrs), inputs, [output])
    return output


SCALE, ZERO = constant(0.5), constant(9, np.uint8)
WEIGHT = constant([[1, 2, 3], [4, 5, 6]], np.int8)


def rows(dtype: type = np.uint8, scale: gs.Constant = SCALE) -> gs.Tensor:
    x = gs.Variable("x", np.float32, ["n", 2])
    zero = constant(0, dtype)
    codes = made("QuantizeLinear", [x, scale, zero], dtype)
    return made("DequantizeLinear", [codes, scale, zero])


def gemm(bias_scale: object, weight_scale: object) -> gs.Node:
    weight = made("DequantizeLinear", [WEIGHT, constant(weight_scale)])
    bias = made("DequantizeLinear", [constant([1, 2, 3], np.int32), constant(bias_scale)], axis=0)
    return made("Gemm", [rows(), weight, bias]).inputs[0]


def test_steps_of_a_weight_and_of_computed_values() -> None:
    steps = steps_of(made("DequantizeLinear", [WEIGHT, constant([1, 2, 3])], axis=-1).inputs[0])
    assert steps is not None
    assert (steps.axis, steps.block, steps.is_weight, steps.is_scalar) == (1, 0, True, False)
    assert steps.transposed().axis == 0
    assert steps.form((2, 3)) == [1, -1]
    computed = steps_of(rows().inputs[0])
    assert computed is not None
    assert (computed.is_weight, computed.form(None)) == (False, [])
    assert steps_of(made("QuantizeLinear", [rows(), SCALE, ZERO]).inputs[0]) is None


def test_blocks() -> None:
    scales = constant([[1.0, 2, 3]])
    node = made("DequantizeLinear", [WEIGHT, scales], axis=0, block_size=2).inputs[0]
    steps = steps_of(node)
    assert steps is not None
    assert (steps.form((2, 3)), steps.groups((2, 3))) == ([1, 1, 3], [1, 2, 3])
    assert steps.form((3, 3)) is None


def test_the_dtype_is_that_of_the_zero_point() -> None:
    """A file need not have types of inner values."""
    node = made("DequantizeLinear", [gs.Variable("q"), SCALE, ZERO]).inputs[0]
    steps = steps_of(node)
    assert steps is not None
    assert steps.dtype == np.uint8
    assert steps_of(made("DequantizeLinear", [gs.Variable("q"), SCALE]).inputs[0]) is None


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (rows(), True),
        (made("Slice", [made("Unsqueeze", [rows()])]), True),
        (made("Relu", [rows()]), False),
        (rows(np.uint16), False),
        (rows(scale=constant([0.5, 1])), False),
    ],
)
def test_rows_of_8_bits(tensor: gs.Tensor, found: bool) -> None:
    assert (quantized_rows(tensor) is not None) is found


def test_scales_of_sums() -> None:
    np.testing.assert_array_equal(sum_scales(gemm(1.0, [1, 2, 4])), [0.5, 1, 2])
    np.testing.assert_array_equal(sum_scales(gemm(1.0, 4.0)), [2])
    assert sum_scales(made("MatMul", [rows(), WEIGHT]).inputs[0]) is None


@pytest.mark.parametrize(
    ("bias_scale", "weight_scale", "found"),
    [([0.5, 1, 2], [1, 2, 4], False), (2.0, 4.0, False), ([0.5, 1, 3], [1, 2, 4], True)],
)
def test_scales_of_a_bias(bias_scale: object, weight_scale: object, found: bool) -> None:
    node = gemm(bias_scale, weight_scale)
    assert has_other_bias_scale(node, node.inputs[2]) is found
    assert not has_other_bias_scale(node, node.inputs[0].inputs[0].inputs[0])


TEXT = "main (float[n,4] x, float[6,4] w, float[6] b) => (float[n,6] y) {{ {body} }}"


def product(body: str):
    graph = open_model(parse(TEXT.format(body=body)))
    return graph, graph.nodes[-1]


@pytest.mark.parametrize(
    ("body", "axis"),
    [
        ("float[4,6] t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)", 1),
        ("y = Gemm <transB = 1> (x, w, b)", 1),
        ("float[4,6] t = Transpose <perm = [1, 0]> (w) y = Gemm (x, t)", 1),
    ],
)
def test_the_matrix_is_found_before_its_transpose(body: str, axis: int) -> None:
    _graph, node = product(body)
    matrix, found = second_factor(node)
    assert (matrix.name, found) == ("w", axis)
    assert obstacle(node, 6) == ""


def test_a_scaled_product_and_another_bias_are_obstacles() -> None:
    _graph, node = product("y = Gemm <transB = 1, alpha = 0.5> (x, w, b)")
    assert obstacle(node, 6) == "the product is scaled or transposed"
    _graph, node = product("y = Gemm <transB = 1> (x, w, b)")
    assert obstacle(node, 5) == "the bias must be a row with one value per output"
