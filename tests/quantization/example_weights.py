"""Weights and inputs of products for the tests of quantization."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.quantization.weights.products import MatrixWeight, Products


def heavy_tailed(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Return weights float32 ``[rows, columns]`` with outliers, as trained ones have."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(5, (rows, columns)) * 0.02).astype(np.float32)


def grouped(rows: int, groups: int, size: int = 32) -> np.ndarray:
    """Return weights float32 ``[rows, groups, size]``."""
    return heavy_tailed(rows, groups * size).reshape(rows, groups, size)


def correlated_inputs(count: int, columns: int) -> np.ndarray:
    """Return inputs float32 ``[count, columns]`` that are correlated, some of them large."""
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(columns, columns)) / np.sqrt(columns)
    scale = np.exp(rng.normal(size=columns))
    return ((rng.normal(size=(count, columns)) @ mix) * scale).astype(np.float32)


def linear(
    weight: np.ndarray, *, by_rows: bool = True, name: str = "layer.weight", opset: int = 21
) -> ir.Model:
    """Return ``y = x @ weight.T`` with the weight stored as ``[N, K]``, or as its transpose."""
    outputs, inputs = weight.shape
    stored = np.ascontiguousarray(weight if by_rows else weight.T)
    tensor = onnx.numpy_helper.from_array(stored, name)
    nodes = [onnx.helper.make_node("MatMul", ["x", "turned" if by_rows else name], ["y"])]
    if by_rows:
        nodes.insert(0, onnx.helper.make_node("Transpose", [name], ["turned"], perm=[1, 0]))
    ends = [
        onnx.helper.make_tensor_value_info(end, tensor.data_type, ["batch", size])
        for end, size in (("x", inputs), ("y", outputs))
    ]
    graph = onnx.helper.make_graph(nodes, "linear", ends[:1], ends[1:], [tensor])
    opsets = [onnx.helper.make_opsetid("", opset)]
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))


def experts(weights: np.ndarray, *, by_rows: bool = True, function: bool = False) -> ir.Model:
    """Return ``y = gather_mm(2 x, weights)`` for ``x [n, M, K]`` and weights ``[experts, N, K]``.

    Args:
        weights: The matrices.
        by_rows: Whether they are stored like this, or as ``[experts, K, N]``.
        function: Whether the product is in a function that gets its weights as an argument.
    """
    count, columns, rows = weights.shape
    stored = (count, columns, rows) if by_rows else (count, rows, columns)
    product = f"ai.coreai.gather_mm <num_batch_axes = 0, transpose_rhs = {int(by_rows)}>"
    made = "ai.coreai.module.Experts (s, chosen, w)" if function else f"{product} (s, w, , chosen)"
    turned = "r = Transpose <perm = [0, 2, 1]> (t)" if by_rows else "r = Identity (t)"
    text = f"""<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1, "ai.coreai.module": 1]>
    agraph (float[n, m, {rows}] x, int64[n] chosen) => (float[n, m, {columns}] y)
    <float[{", ".join(map(str, stored))}] w = {{0.0}}> {{ s = Add (x, x) y = {made} }}
    <domain: "ai.coreai", opset_import: ["": 21]>
    gather_mm <num_batch_axes, transpose_rhs> (lhs, rhs, lhs_indices, rhs_indices) => (output)
    {{ t = Gather (rhs, rhs_indices) {turned} output = MatMul (lhs, r) }}"""
    if function:
        text += f"""<domain: "ai.coreai.module", opset_import: ["": 21, "ai.coreai": 1]>
        Experts (x, i, w) => (y) {{ y = {product} (x, w, , i) }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    tensor = np.ascontiguousarray(weights if by_rows else weights.swapaxes(1, 2))
    model.graph.initializers["w"].const_value = ir.tensor(tensor, name="w")
    return model


def weight_of(weight: np.ndarray, *, by_rows: bool = True) -> MatrixWeight:
    """Return the weight of the only product of a model."""
    (found,) = Products(linear(weight, by_rows=by_rows)).weights()
    return found
