"""The factors of a product with a quantized matrix."""

from __future__ import annotations

import pytest

from coreai_onnx.passes.analysis.quantized_products import obstacle, second_factor
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse

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
    assert obstacle(node, 5) == "the bias is no row"
