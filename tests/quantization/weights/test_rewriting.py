"""Tests of rewrites a model with quantized weights."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.bodies.quantized import FewBitBodies
from coreai_onnx.errors import QuantizationError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization.weights.packed_weights import pack_weight
from coreai_onnx.quantization.weights.products import Products
from coreai_onnx.quantization.weights.rewriting import Rewriting
from coreai_onnx.quantization.weights.scheme import METHODS, Scheme
from tests.quantization.example_weights import correlated_inputs, experts, heavy_tailed, linear
from tests.quantization.weights.test_packed_weights import values_of
from tests.quantization.weights.test_products import STORED
from tests.support.small_models import parse
from tests.support.tolerances import assert_close

FUNCTIONS = """<ir_version: 10, opset_import: ["": 21, "ai.coreai.module": 1]>
agraph (float[n, 16] x) => (float[n, 16] y)
<float[16, 16] first = {0.0}, float[16, 16] second = {0.0}, float[16] row = {0.0}>
{ h = ai.coreai.module.Outer(x, first, row) y = ai.coreai.module.Outer(h, second, row) }
<domain: "ai.coreai.module", opset_import: ["": 21, "ai.coreai.module": 1]>
Outer (x, w, b) => (y) { y = ai.coreai.module.Inner(x, w, b) }
<domain: "ai.coreai.module", opset_import: ["": 21]>
Inner (x, w, b) => (y) { y = Gemm<transB = 1>(x, w, b) }
"""


def rewritten(model: ir.Model, scheme: Scheme, moments: np.ndarray | None = None) -> dict:
    """Quantize all weights of a model in place; return their values by name."""
    products = Products(model)
    packed = {weight: pack_weight(weight, scheme, moments) for weight in products.weights()}
    Rewriting(products, packed, FewBitBodies(model)).run()
    return {weight.name: values_of(done) for weight, done in packed.items()}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_a_product_with_the_rounded_weight(bits: int, method: str) -> None:
    weight, x = heavy_tailed(24, 32), correlated_inputs(40, 32)
    model = linear(weight)
    (values,) = rewritten(model, Scheme(bits, 16, method), x.T @ x).values()
    ops = [node.op_type.partition(".")[0] for node in model.graph]
    assert ops == (["Mul"] if method == "awq" else []) + ["linear_nbits"]
    assert not any(name == "layer.weight" for name in model.graph.initializers)
    (y,) = OnnxProgram({"main": model}).run(x, kernels=False)
    assert_close(y, x @ values.T)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("function", [True, False])
def test_experts_with_rounded_weights(method: str, function: bool) -> None:
    weights, x = heavy_tailed(72, 32).reshape(3, 24, 32), correlated_inputs(40, 32)
    model = experts(weights, by_rows=function, function=function)
    moments = np.broadcast_to(x.T @ x, (3, 32, 32))
    (values,) = rewritten(model, Scheme(4, 16, method), moments).values()
    root = next(f for f in model.functions.values() if f.name == "Experts") if function else None
    ops = [node.op_type.partition(".")[0] for node in root or model.graph]
    before = ["Mul"] if method == "awq" else []
    assert ops == ([] if function else ["Add"]) + before + ["gather_mm_nbits"]
    assert "w" not in model.graph.initializers
    assert not any(function.name == "gather_mm" for function in model.functions.values())
    rows, chosen = x.reshape(20, 2, 32), np.arange(20) % 3
    (y,) = OnnxProgram({"main": model}).run(rows, chosen, kernels=False)
    assert_close(y, 2 * rows @ values[chosen].swapaxes(1, 2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_dtypes(dtype) -> None:
    model = linear(heavy_tailed(24, 32).astype(dtype), by_rows=False)
    (values,) = rewritten(model, Scheme(4, 16)).values()
    x = correlated_inputs(5, 32).astype(dtype)
    (y,) = OnnxProgram({"main": model}).run(x, kernels=False)
    assert_close(y, (x.astype(np.float64) @ values.T.astype(np.float64)).astype(dtype))
    (name,) = [function.name for function in model.functions.values()]
    assert name.endswith("float64") == (dtype is np.float64)


@pytest.mark.parametrize("method", ["hqq", "awq"])
def test_arguments_of_nested_functions(method: str) -> None:
    model = parse(FUNCTIONS)
    arrays = {"first": heavy_tailed(16, 16), "second": heavy_tailed(16, 16, seed=1)}
    for name, array in arrays.items():
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    row = np.arange(16, dtype=np.float32)
    model.graph.initializers["row"].const_value = ir.tensor(row, name="row")
    x = correlated_inputs(6, 16)
    values = rewritten(model, Scheme(4, 16, method), x.T @ x)
    assert set(arrays).isdisjoint(model.graph.initializers)
    assert {function.name for function in model.functions.values()} >= {"Outer", "Inner"}
    (y,) = OnnxProgram({"main": model}).run(x, kernels=False)
    assert_close(y, (x @ values["first"].T + row) @ values["second"].T + row)


def test_a_matrix_that_is_also_read_elsewhere_stays() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n, 16] x) => (float[n, 16] y, float[16, 16] z)
    <float[16, 16] w = {0.0}> { y = MatMul(x, w) z = Neg(w) }""")
    array = heavy_tailed(16, 16)
    model.graph.initializers["w"].const_value = ir.tensor(array, name="w")
    (values,) = rewritten(model, Scheme(4, 16)).values()
    x = correlated_inputs(6, 16)
    y, z = OnnxProgram({"main": model}).run(x, kernels=False).values()
    assert_close(y, x @ values.T)
    assert_close(z, -array)


def test_a_tied_table_is_stored_once() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (int64[n] i) => (float[n, 16] y, float[n, 24] z)
    <float[24, 16] table = {0.0}>
    { y = Gather(table, i) t = Transpose<perm = [1, 0]>(table) z = MatMul(y, t) }""")
    table = heavy_tailed(24, 16)
    model.graph.initializers["table"].const_value = ir.tensor(table, name="table")
    (values,) = rewritten(model, Scheme(4, 16)).values()
    names = ["table.codes", "table.scales", "table.zero_points"]
    assert sorted(model.graph.initializers) == names
    ids = np.array([3, 0, 23, -1])
    y, z = OnnxProgram({"main": model}).run(ids, kernels=False).values()
    assert_close(y, values[ids])
    assert_close(z, values[ids] @ values.T)


def test_a_weight_that_is_stored_in_16_bits() -> None:
    model = parse(STORED.replace("z = MatMul(x, b)", "z = Neg(x)"))
    for seed, name in enumerate(("first", "second")):
        array = heavy_tailed(16, 16, seed).astype(np.float16)
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    values = rewritten(model, Scheme(4, 16))
    assert not any(node.op_type == "Transpose" for node in model.graph)
    assert {"first", "second"}.isdisjoint(model.graph.initializers)
    x = correlated_inputs(6, 16)
    y = OnnxProgram({"main": model}).run(x, kernels=False)[0]
    assert_close(y, x @ values["first"].T @ values["second"].T)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_products_in_functions_only_run_in_a_stock_session() -> None:
    x = torch.randn(2, 64)
    model = torch.nn.Sequential(Small(), Small()).eval()
    program = coreai_onnx.convert(model, (x,), externalize_modules=[Small]).quantize(8)
    assert {node.domain for node in program.model.graph} == {"ai.coreai.module"}
    difference = program.run(x, kernels=False)[0] - model(x).detach().numpy()
    assert np.abs(difference).max() < 0.05


def test_scales_of_a_lookup_have_a_type() -> None:
    ids = torch.tensor([1, 2])
    program = coreai_onnx.convert(torch.nn.Embedding(200, 64), (ids,)).quantize(4)
    cast = next(node for node in program.model.graph if node.op_type == "Cast")
    assert cast.outputs[0].dtype == ir.DataType.FLOAT
    assert cast.outputs[0].shape == ir.Shape([200, 2])


X = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
STATIC: dict[str, Any] = {"activations": True, "calibration": [(X,)]}


def program() -> OnnxProgram:
    return OnnxProgram({"main": linear(heavy_tailed(96, 64))})


@pytest.mark.parametrize("second", [{}, STATIC], ids=["weights", "static"])
@pytest.mark.parametrize("target", [None, "contrib"])
@pytest.mark.parametrize("first", [{"bits": 4}, {"bits": 8, **STATIC}], ids=["weights", "static"])
def test_twice(first: dict[str, Any], second: dict[str, Any], target: Any) -> None:
    one = program().quantize(**first)
    if target:
        one.optimize(target=target)
    before = one.to_proto().SerializeToString(deterministic=True)
    report = one.quantization_report
    with pytest.raises(QuantizationError, match=r"the model is quantized already: [12] of its"):
        one.quantize(**second)
    assert one.to_proto().SerializeToString(deterministic=True) == before
    assert one.quantization_report is report


def test_convolutions_twice() -> None:
    x = torch.randn(1, 16, 9)
    one = coreai_onnx.convert(torch.nn.Conv1d(16, 32, 8).eval(), (x,))
    one.quantize(8, convolutions=True, minimum_size=0)
    with pytest.raises(QuantizationError, match="the model is quantized already: 1 of its nodes"):
        one.quantize(8, convolutions=True, minimum_size=0)


def test_a_model_without_weights_is_not_quantized() -> None:
    one = coreai_onnx.convert(torch.nn.ReLU(), (torch.ones(2),))
    with pytest.raises(QuantizationError, match="there is nothing to quantize"):
        one.quantize()
