"""ONNX's schemas."""

from __future__ import annotations

from coreai_onnx.model.python.builder.schemas import default_outputs, schema_of


def test_the_version_in_use_counts() -> None:
    assert schema_of("", "Gelu", {"": 20}) is not None
    assert schema_of("", "Gelu", {"": 19}) is None
    assert schema_of("ai.coreai", "rms_norm", {"ai.coreai": 1}) is None
    assert schema_of("ai.onnx.ml", "Scaler", {}) is None


def test_outputs_that_must_be_there() -> None:
    assert default_outputs("", "TopK", {"": 21}) == 2
    assert default_outputs("", "Dropout", {"": 21}) == 1
    assert default_outputs("custom", "Op", {"custom": 1}) == 1
