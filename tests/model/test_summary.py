"""The summary of a model."""

from __future__ import annotations

from coreai_onnx.model.inventory import summarize
from tests.support.small_models import counter_model


def test_interface_operators_and_sizes() -> None:
    text = summarize("main", counter_model())
    assert text.startswith("entrypoint main: 8 B of weights, IR 10, ai.onnx 21")
    assert "input   x      float32[n]" in text
    assert "state   count  float32[1]" in text
    assert "Mul" in text
