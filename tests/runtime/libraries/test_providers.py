"""Execution providers: claims, versions, and their errors."""

from __future__ import annotations

import onnx
import onnxruntime as ort
import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.libraries.providers import (
    CPU,
    add_providers,
    claimed_nodes,
    compiled,
    provider_version,
)

MODEL = """
<ir_version: 10, opset_import: ["": 23]>
main (float[N] x) => (float[N] y) {
    [first] a = Sin (x)
    [second] y = Cos (a)
}
"""


def content(text: str = MODEL) -> bytes:
    return onnx.parser.parse_model(text).SerializeToString()


def test_the_nodes_that_a_provider_claims() -> None:
    assert claimed_nodes(content(), CPU, {}) == {"first": CPU, "second": CPU}


def test_a_model_that_is_rejected() -> None:
    with pytest.raises(SessionError, match="CPUExecutionProvider rejects the program"):
        claimed_nodes(content(MODEL.replace("Sin", "Nonsense")), CPU, {})
    with pytest.raises(SessionError, match="CPUExecutionProvider cannot compile the part"):
        compiled(b"nonsense", CPU, {})


def test_versions() -> None:
    assert provider_version(CPU) == ort.__version__


def test_a_provider_that_is_not_available() -> None:
    options = ort.SessionOptions()
    with pytest.raises(SessionError, match="Nobody is not available"):
        add_providers(options, {"Nobody": {}})
