"""ONNX models that this package did not make, for tests."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import numpy_helper, parser

RELU = ("(float[n, 4] x) => (float[n, 4] y)", "y = Relu(x)")
"""The interface and the body of a small model, for `parsed`."""
FUNCTIONS = """
<ir_version: 8, opset_import: ["": 18, "other": 1]>
agraph (float[batch, 16] x, float[batch] scale) => (float[batch, 32] y, float[batch, 1] total)
{
    h = MatMul(x, weight)
    shape = Constant <value = int64[2] {-1, 1}> ()
    s = Reshape(scale, shape)
    y = other.scaled <factor = 2.0> (h, s)
    total = ReduceSum(y, axis)
}
<domain: "other", opset_import: ["": 18]>
scaled <factor> (a, b) => (c) {
    f = Constant <value_float: float = @factor> ()
    g = Mul(a, f)
    c = Mul(g, b)
}
"""


def with_functions() -> onnx.ModelProto:
    """A model of opset 18 with a function, a large weight, a small one and named sizes."""
    model = parser.parse_model(FUNCTIONS)
    weight = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    return model


def example(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of `with_functions`."""
    return torch.randn(rows, 16), torch.randn(rows)


def parsed(interface: str, body: str, *, opset: int = 17) -> onnx.ModelProto:
    """A model of one graph in ONNX's text syntax."""
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> agraph {interface} {{ {body} }}'
    )
