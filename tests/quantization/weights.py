"""Weights and inputs of products for the tests of quantization."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.quantization.products import MatrixWeight, Products


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


def weight_of(weight: np.ndarray, *, by_rows: bool = True) -> MatrixWeight:
    """Return the weight of the only product of a model."""
    (found,) = Products(linear(weight, by_rows=by_rows)).weights()
    return found
