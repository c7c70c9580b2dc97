"""A model that is quantized already is refused, whatever quantized it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import QuantizationError
from coreai_onnx.program import OnnxProgram
from tests.quantization.example_weights import heavy_tailed, linear

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
