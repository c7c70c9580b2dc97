"""Finds products and lookups with constant weights, also in functions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.quantization.weights.products import Products
from tests.quantization.example_weights import experts, heavy_tailed, linear
from tests.support.small_models import parse

HEAD = '<ir_version: 10, opset_import: ["": 21, "ai.coreai.module": 1]>'
FUNCTION = """
<domain: "ai.coreai.module", opset_import: ["": 21]>
Layer (x, w) => (y) { t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) }
"""


def test_a_transpose_turns_the_matrix() -> None:
    for by_rows in (True, False):
        products = Products(linear(heavy_tailed(6, 8), by_rows=by_rows))
        (product,), (weight,) = products.products, products.weights()
        assert product.node.op_type == "MatMul"
        assert weight.by_rows == by_rows
        assert (weight.shape, weight.size) == ((6, 8), 48)
        assert (weight.name, weight.path, weight.is_lookup) == ("layer.weight", "layer", False)


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("y = Gemm<transB = 1>(x, w)", 1),
        ("y = Gemm(x, w, row)", 1),
        ("y = Gemm(x, w, w)", 0),
        ("y = Gemm<alpha = 2.0>(x, w)", 0),
        ("y = Gemm<transA = 1>(x, w)", 0),
        ("y = MatMul(w, x)", 0),
        ("y = MatMul(x, x)", 0),
        ("i = Cast<to = 7>(x) y = Gather(w, i)", 1),
        ("i = Cast<to = 7>(x) y = Gather<axis = 1>(w, i)", 0),
        ("y = Mul(x, w)", 0),
    ],
)
def test_nodes_with_a_constant_matrix(node: str, found: int) -> None:
    model = parse(f"""{HEAD}
    agraph (float[2, 2] x) => (float[a, b] y)
    <float[2, 2] w = {{1.0, 2.0, 3.0, 4.0}}, float[2] row = {{1.0, 2.0}}> {{ {node} }}""")
    assert len(Products(model).products) == found


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("function", [True, False])
def test_experts_are_stacked_matrices(by_rows: bool, function: bool) -> None:
    weights = heavy_tailed(12, 8).reshape(3, 4, 8)
    products = Products(experts(weights, by_rows=by_rows, function=function))
    (product,), (weight,) = products.products, products.weights()
    assert product.is_gathered
    assert len(product.inputs) == 2
    assert (weight.shape, weight.size, weight.by_rows) == ((3, 4, 8), 96, by_rows)
    assert np.array_equal(weight.matrix(), weights)


def test_experts_are_known_by_their_names_and_their_module() -> None:
    model = experts(heavy_tailed(12, 8).reshape(3, 4, 8))
    model.graph.node(1).metadata_props["coreai.scope"] = "mlp.experts"
    (weight,) = Products(model).weights()
    assert weight.paths == ("w", "mlp.experts")


def test_biases_of_experts_are_no_embeddings() -> None:
    model = experts(heavy_tailed(12, 8).reshape(3, 4, 8))
    bias = ir.val("bias", const_value=ir.tensor(heavy_tailed(3, 4), name="bias"))
    model.graph.register_initializer(bias)
    model.graph.append(ir.node("Gather", [bias, model.graph.inputs[1]]))
    assert [weight.name for weight in Products(model).weights()] == ["w"]
    model.graph.node(2).replace_input_with(1, model.graph.inputs[0])
    assert [weight.name for weight in Products(model).weights()] == ["w", "bias"]


@pytest.mark.parametrize(
    ("name", "value"), [("num_batch_axes", 1), ("lhs_indices", 2), ("rhs_indices", 3)]
)
def test_other_gathered_products_are_none_of_experts(name: str, value: int) -> None:
    model = experts(heavy_tailed(12, 8).reshape(3, 4, 8))
    node = model.graph.node(1)
    if name == "num_batch_axes":
        node.attributes[name] = ir.AttrInt64(name, value)
    else:
        chosen = model.graph.inputs[1] if name == "lhs_indices" else None
        node.replace_input_with(value, chosen)
    assert not Products(model).products


def test_overridable_initializers_and_integers_are_no_weights() -> None:
    model = parse(f"""{HEAD}
    agraph (float[2, 2] x, float[2, 2] w) => (float[2, 2] y)
    <float[2, 2] w = {{1.0, 2.0, 3.0, 4.0}}> {{ y = MatMul(x, w) }}""")
    assert not Products(model).products


def test_arguments_of_functions_are_weights() -> None:
    model = parse(f"""{HEAD}
    agraph (float[2, 2] x) => (float[2, 2] y)
    <float[2, 2] first = {{1.0, 2.0, 3.0, 4.0}}, float[2, 2] second = {{1.0, 2.0, 3.0, 4.0}}>
    {{ h = ai.coreai.module.Layer(x, first) y = ai.coreai.module.Layer(h, second) }}{FUNCTION}""")
    products = Products(model)
    (product,) = products.products
    assert [w.name for w in products.weights()] == ["first", "second"]
    assert all(weight.products == (product,) for weight in products.weights())


def test_an_argument_that_is_computed_is_no_weight() -> None:
    model = parse(f"""{HEAD}
    agraph (float[2, 2] x) => (float[2, 2] y)
    <float[2, 2] first = {{1.0, 2.0, 3.0, 4.0}}>
    {{ h = ai.coreai.module.Layer(x, first) y = ai.coreai.module.Layer(h, x) }}{FUNCTION}""")
    assert not Products(model).products


def test_a_shared_matrix_has_all_its_paths() -> None:
    model = parse(f"""{HEAD}
    agraph (int64[n] i) => (float[n, 2] y)
    <float[2, 2] table = {{1.0, 2.0, 3.0, 4.0}}>
    {{ rows = Gather(table, i) t = Transpose<perm = [1, 0]>(table) y = MatMul(rows, t) }}""")
    for node, scope in zip(model.graph, ("embed", "head", "head"), strict=True):
        node.metadata_props["coreai.scope"] = scope
    (weight,) = Products(model).weights()
    assert weight.paths == ("embed", "head")
    assert weight.is_lookup
    assert np.array_equal(weight.tensor.numpy(), [[1, 2], [3, 4]])


STORED = f"""{HEAD}
agraph (float[n, 16] x) => (float[n, 16] y, float[n, 16] z)
<float16[16, 16] first = {{0}}, float16[16, 16] second = {{0}}>
{{ a = Cast<to = 1>(first) t = Transpose<perm = [1, 0]>(a) h = MatMul(x, t)
  b = Cast<to = 1>(second) y = ai.coreai.module.Layer(h, b) i = Cast<to = 7>(x)
  z = MatMul(x, b) }}{FUNCTION}"""


def test_weights_may_be_stored_in_16_bits() -> None:
    found = Products(parse(STORED))
    weights = {weight.name: weight for weight in found.weights()}
    assert [product.dtype.name for product in found.products] == ["FLOAT"] * 3
    assert weights["first"].by_rows
    assert len(weights["second"].products) == 1  # the other product has the transposed matrix
