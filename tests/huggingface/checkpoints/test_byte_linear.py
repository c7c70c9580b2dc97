"""Layers of bytes compute the product of rounded inputs and the weight, in torch and in ONNX."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.byte_linear import Float8Linear, IntegerLinear
from coreai_onnx.huggingface.checkpoints.packed_matrices import CheckpointLayer
from coreai_onnx.model.inventory import graphs
from tests.huggingface.checkpoints.test_rounded_activations import rounding
from tests.tolerances import assert_close

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(2, 5, 64, generator=GENERATOR)
CODES = torch.randint(-127, 128, (48, 64), generator=GENERATOR).to(torch.int8)
SCALES = (torch.rand(48, 1, generator=GENERATOR) + 0.5) / 512
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


@pytest.mark.parametrize("scales", [SCALES, torch.tensor([0.001])])
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
def test_integers(settings: dict[str, Any], op: str, scales: torch.Tensor) -> None:
    layer = IntegerLinear(CODES, scales, rounding(**settings))
    assert op in checked(layer, CODES * scales)


@pytest.mark.parametrize("settings", [None, {}, STATIC])
@pytest.mark.parametrize(
    "scales", [SCALES, torch.tensor(0.5), torch.tensor([[0.5, 0.25], [1, 2], [0.1, 1]])]
)
def test_float8(settings: dict[str, Any] | None, scales: torch.Tensor) -> None:
    values = torch.randn(48, 64, generator=GENERATOR).to(torch.float8_e4m3fn)
    given = None if settings is None else rounding(type="float", **settings)
    if scales.dim():
        rows, columns = (n // b for n, b in zip(values.shape, scales.shape, strict=True))
        wide = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    else:
        wide = scales
    checked(Float8Linear(values, scales, given), values.float() * wide)


def test_blocks_that_do_not_divide() -> None:
    values = torch.zeros(48, 64).to(torch.float8_e4m3fn)
    with pytest.raises(ModelSourceError, match=r"scales \[5, 1\] do not divide the weight \[48"):
        Float8Linear(values, torch.ones(5, 1), None)
