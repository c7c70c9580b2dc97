"""Models of one product with a quantized weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

RNG = np.random.default_rng(0)
ROWS = "dequantized", "Transpose", "MatMul"
"""A row of the weight for each output, as linear layers keep it."""
COLUMNS = "dequantized", "MatMul"


def made(
    op: str, inputs: Sequence[ir.Value | None], shape: Sequence[int | str], **attrs: Any
) -> ir.Value:
    node = ir.node(op, inputs, attrs)
    (value,) = node.outputs
    value.name, value.type, value.shape = op, ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
    return value


def weight(name: str, values: np.ndarray) -> ir.Value:
    tensor = ir.tensor(values, name=name)
    return ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)  # fmt: skip


def linear(
    kind: type,
    block: int,
    ops: Sequence[str] = ROWS,
    *,
    size: tuple[int, int] = (48, 64),
    zeros: bool = True,
    limits: tuple[int, int] = (-8, 8),
    bias: Sequence[int] | None = None,
    **change: Any,
) -> ir.Model:
    """Return a product with a weight that ``DequantizeLinear`` makes."""
    outputs, inputs = size
    count, by_rows = -(-inputs // block), "Transpose" in ops or "transB" in change
    shape, form = ((outputs, inputs), (outputs, count)) if by_rows else ((inputs, outputs), (count, outputs))  # fmt: skip
    low, high = (0, 16) if kind is ml_dtypes.uint4 else limits
    constants = [weight("q", RNG.integers(low, high, shape).astype(kind))]
    constants.append(weight("s", (RNG.random(form) + 0.5).astype(np.float32)))
    if zeros:
        constants.append(weight("z", RNG.integers(low, high, form).astype(kind)))
    lead: list[int | str] = ["n"] if ops[-1] == "Gemm" else ["b", "n"]
    x = ir.Value(name="x", shape=ir.Shape([*lead, inputs]), type=ir.TensorType(ir.DataType.FLOAT))
    axis = change.pop("axis", int(by_rows))
    matrix = made("DequantizeLinear", constants, shape, axis=axis, block_size=change.pop("block", block))  # fmt: skip
    if "Transpose" in ops:
        matrix = made("Transpose", [matrix], shape[::-1], perm=[1, 0])
    factors = [x, matrix]
    if bias is not None:
        constants.append(weight("bias", RNG.random(bias).astype(np.float32)))
    if bias is not None and ops[-1] == "Gemm":
        factors.append(constants[-1])
    y = made(ops[-1], factors, [*lead, outputs], **change)
    if bias is not None and ops[-1] == "MatMul":
        y = made("Add", [constants[-1], y], [*lead, outputs])
    nodes: list[ir.Node] = []
    values = [y]
    while values:
        node = values.pop().producer()
        if node is not None and node not in nodes:
            nodes.insert(0, node)
            values += [value for value in node.inputs if value is not None]
    graph = ir.Graph([x], [y], nodes=nodes, initializers=constants, opset_imports={"": 23})
    graph.name = "main"
    return ir.from_proto(ir.to_proto(ir.Model(graph, ir_version=10)))


INT4, UINT4 = ml_dtypes.int4, ml_dtypes.uint4
