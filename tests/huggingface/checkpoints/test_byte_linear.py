"""Layers of bytes compute the product of rounded inputs and the weight, in torch and in ONNX."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.huggingface.checkpoints.byte_linear import IntegerLinear, multiplies_integers
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    CheckpointLayer,
    PackedMatrix,
    of_codes,
)
from coreai_onnx.model.inventory import graphs
from tests.huggingface.checkpoints.test_rounded_activations import rounding
from tests.support.tolerances import assert_close

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(2, 5, 64, generator=GENERATOR)
CODES = torch.randint(-127, 128, (48, 64), generator=GENERATOR).to(torch.int8)
SCALES = (torch.rand(48, 1, generator=GENERATOR) + 0.5) / 512
STEPS = (CODES.to(torch.int16) + 128).to(torch.uint8)
MATRIX = of_codes(STEPS, SCALES, 8)
BIAS = torch.randn(48, generator=GENERATOR)
STATIC = {"dynamic": False, "strategy": "tensor", "scale": torch.tensor([0.03125])}


def checked(layer: CheckpointLayer, weight: torch.Tensor) -> list[str]:
    """Compare a layer with the product that it means; return the ops of its program."""
    layer.hold("bias", BIAS)
    inputs = X if layer.rounding is None else layer.rounding(X)
    expected = torch.nn.functional.linear(inputs, weight, BIAS)
    assert_close(layer(X), expected)
    program = coreai_onnx.convert(layer.eval(), (X,), dynamic_shapes=({0: "batch", 1: "tokens"},))
    assert_close(program.run(X, kernels=False)[0], expected)
    weights = [v.const_value for v in program.model.graph.initializers.values()]
    assert not [w for w in weights if w.dtype == ir.DataType.FLOAT and w.size >= 48 * 64]
    return [node.op_type for graph in graphs(program.model) for node in graph]


@pytest.mark.parametrize(
    ("settings", "op"),
    [
        ({}, "MatMulInteger"),
        ({"symmetric": False}, "MatMulInteger"),
        ({"strategy": "tensor"}, "MatMulInteger"),
        ({"strategy": "tensor", "symmetric": False}, "MatMulInteger"),
        (STATIC, "QuantizeLinear"),
        ({**STATIC, "symmetric": False, "zero": torch.tensor([-9])}, "QuantizeLinear"),
    ],
)
def test_integers(settings: dict[str, Any], op: str) -> None:
    scheme = rounding(**settings)
    assert multiplies_integers(MATRIX, scheme)
    assert op in checked(IntegerLinear(MATRIX, scheme), CODES * SCALES)


@pytest.mark.parametrize(
    ("matrix", "settings"),
    [
        (of_codes(STEPS, SCALES.expand(48, 2).contiguous(), 8), {}),
        (of_codes(STEPS, SCALES, 8, zero_points=STEPS[:, :1]), {}),
        (MATRIX, {"type": "float"}),
        (MATRIX, {"strategy": "group", "group_size": 32}),
    ],
)
def test_scales_of_less_than_a_row(matrix: PackedMatrix, settings: dict[str, Any]) -> None:
    assert not multiplies_integers(matrix, rounding(**settings))
