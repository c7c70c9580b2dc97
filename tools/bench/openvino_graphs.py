"""OpenVINO's own ops for the work of a case, with their inputs.

The body of a composite is what OpenVINO reads in a file. These graphs are what somebody would write
for OpenVINO alone, so that a comparison is not one with a body that it does not fuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tools.bench.case import Graph, Inputs
from tools.bench.runners import openvino_tensor

_BYTE = 8
_ZERO_POINTS = {
    bits: torch.tensor([[[byte]]], dtype=torch.uint8) for bits, byte in ((8, 128), (4, 0x88))
}
"""Here, because a constant of OpenVINO does not keep the memory that it shares."""


def attention(visible: torch.Tensor | None, *, causal: bool) -> Callable[[Inputs], Graph]:
    """ScaledDotProductAttention. Keys and values are repeated for their queries beforehand."""

    def make(inputs: Inputs) -> Graph:
        import openvino
        from openvino import opset13 as ops

        q, k, v = (x for x in inputs[:3] if x is not None)
        repeats = q.shape[1] // k.shape[1]
        feeds = [q, *(x.repeat_interleave(repeats, 1) for x in (k, v))]
        if visible is not None:
            feeds.append(visible)
        parameters = [_parameter(x) for x in feeds]
        product = ops.scaled_dot_product_attention(*parameters, causal=causal)
        return openvino.Model([product], parameters), feeds

    return make


def product(inputs: Inputs) -> Graph:
    """MatMul of rows with a constant matrix, ``[N, K]``."""
    import openvino
    from openvino import opset13 as ops

    rows, weight = (x for x in inputs[:2] if x is not None)
    parameter = _parameter(rows)
    matrix = ops.constant(openvino_tensor(weight.contiguous()))
    return openvino.Model([ops.matmul(parameter, matrix, False, True)], [parameter]), [rows]


def few_bits(attributes: Mapping[str, Any]) -> Callable[[Inputs], Graph]:
    """MatMul with a weight that is decompressed from 8 or 4 bits, computed in bfloat16."""

    def make(inputs: Inputs) -> Graph:
        import numpy as np
        import openvino
        from openvino import opset13 as ops

        rows, codes, scales = (x for x in inputs[:3] if x is not None)
        narrow = rows.bfloat16()
        bits = attributes["bits"]
        steps, middle = (_constant(x, bits) for x in (codes, _ZERO_POINTS[bits]))
        groups = ops.subtract(ops.convert(steps, np.float32), ops.convert(middle, np.float32))
        scaled = ops.multiply(groups, ops.constant(scales.float().unsqueeze(-1).numpy()))
        matrix = ops.reshape(scaled, ops.constant(np.array([len(codes), -1])), False)
        parameter = _parameter(narrow)
        result = ops.matmul(ops.convert(parameter, np.float32), matrix, False, True)
        return openvino.Model([result], [parameter]), [narrow]

    return make


def _constant(codes: torch.Tensor, bits: int) -> Any:
    """Return codes in the last axis of bytes, in their type; a single one is its own group."""
    import openvino
    from openvino import opset13 as ops

    memory = codes.contiguous().numpy()
    if bits == _BYTE:
        return ops.constant(memory)
    shape = [*codes.shape[:2], codes.shape[2] * 2 if codes.numel() > 1 else 1]
    tensor = openvino.Tensor(memory, openvino.Shape(shape), openvino.Type.u4)
    return ops.constant(tensor)


def _parameter(tensor: torch.Tensor) -> Any:
    """Return a parameter of a tensor's shape and dtype."""
    from openvino import opset13 as ops

    return ops.parameter(list(tensor.shape), openvino_tensor(tensor.contiguous()).element_type)
