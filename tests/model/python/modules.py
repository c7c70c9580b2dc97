"""Graphs with module paths for tests: layers that repeat."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def layered(count: int = 4, *, odd: int | None = None) -> ir.Model:
    """Layers ``x = relu(x @ w + b) * scale``; the layer ``odd`` has another activation."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 8]))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 21}, name="main")
    value = x
    for layer in range(count):
        path = f"layers.{layer}"
        ops = [("MatMul", "weight"), ("Add", "bias"), ("Relu", ""), ("Mul", "scale")]
        for op, name in ops:
            op = "Tanh" if op == "Relu" and layer == odd else op
            inputs = [value]
            if name:
                shape = (8, 8) if name == "weight" else (8,)
                array = np.full(shape, layer + 0.5, np.float32)
                weight = ir.Value(name=f"{path}.{name}", const_value=ir.Tensor(array))
                weight.type, weight.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
                graph.register_initializer(weight)
                inputs.append(weight)
            node = ir.node(op, inputs, name=f"{path}.{op}")
            node.metadata_props.update({"coreai.scope": path, "coreai.class": "Block",
                                        "coreai.source": f"model.py:{len(name)}"})  # fmt: skip
            node.outputs[0].name = f"{op.lower()}_{layer}"
            graph.append(node)
            value = node.outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["n", 8])
    graph.outputs.append(value)
    return ir.Model(graph, ir_version=10)
