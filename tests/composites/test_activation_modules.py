"""Quantized activations: modules, torch ops, dtypes, and wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coreai_onnx
from coreai_onnx.composites import ActivationDequantizeModule, ActivationQuantizeModule
from coreai_onnx.composites.activation_modules import limits, stored

SCALE = torch.tensor(0.25)


def test_rounding_and_clamping() -> None:
    x = torch.tensor([-100.0, -0.3, 0.1, 0.12, 0.375, 100.0])
    codes = ActivationQuantizeModule(SCALE, torch.int8)(x)
    assert codes.tolist() == [-128, -1, 0, 0, 2, 127]
    shifted = ActivationQuantizeModule(SCALE, torch.uint8, torch.tensor(3, dtype=torch.uint8))
    assert shifted(x).tolist() == [0, 2, 3, 3, 5, 255]
    few = ActivationQuantizeModule(SCALE, torch.uint4, minval=torch.tensor(-1.0))(x)
    assert (few.tolist(), few.dtype) == ([0, 3, 4, 4, 6, 15], torch.uint8)
    back = ActivationDequantizeModule(SCALE, minval=torch.tensor(-1.0), input_dtype=torch.uint4)
    assert back(few).tolist() == [-1, -0.25, 0, 0, 0.5, 2.75]


def test_dtypes() -> None:
    assert (limits(torch.int4), stored(torch.int4)) == ((-8, 7), torch.int8)
    assert (limits(torch.uint16), stored(torch.uint16)) == ((0, 65535), torch.uint16)
    with pytest.raises(ValueError, match=r"torch\.bool is not a dtype of integers"):
        limits(torch.bool)


BYTE = torch.tensor(1, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.tensor(1), torch.int8), "scale is not one number or a vector"),
        ((torch.ones(2, 2), torch.int8), "scale is not one number or a vector"),
        ((SCALE, torch.uint8, BYTE, SCALE), "zero_point and minval exclude each other"),
        ((SCALE, torch.uint8, BYTE.reshape(1)), "zero_point and scale differ in shape"),
        ((SCALE, torch.int8, BYTE), r"zero_point is torch\.uint8, not torch\.int8"),
        ((SCALE, torch.float8_e4m3fn, None, SCALE), "has neither zero_point nor minval"),
        ((SCALE, torch.bool), "is not a dtype of integers"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"ActivationQuantizeModule: .*{message}|^torch.bool"):
        ActivationQuantizeModule(*arguments)


def test_a_minimum_needs_the_dtype() -> None:
    with pytest.raises(ValueError, match="minval needs an input_dtype"):
        ActivationDequantizeModule(SCALE, minval=SCALE)


def test_a_model_of_integers_in_onnxruntime() -> None:
    """The pattern of a quantizer: onnxruntime finds an integer product in it."""
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quantize = ActivationQuantizeModule(torch.tensor(0.03), torch.int8)
            self.dequantize = ActivationDequantizeModule(torch.tensor(0.03))
            self.linear = torch.nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.dequantize(self.quantize(x)))

    program = coreai_onnx.convert(Model().eval(), (torch.randn(4, 16),))
    ops = [node.op_type for node in program.model.graph]
    assert ops[:2] == ["QuantizeLinear", "DequantizeLinear"]
