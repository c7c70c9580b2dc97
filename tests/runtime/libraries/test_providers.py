"""Execution providers: claims, versions, and their errors."""

from __future__ import annotations

import warnings
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.libraries.providers import (
    add_providers,
    claimed_nodes,
    compiled,
    has_provider,
    provider_version,
    record_claims,
    warn_of_unused,
)
from coreai_onnx.targets.providers import CPU, WEBGPU

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


def test_which_are_installed() -> None:
    assert has_provider(CPU)
    assert not has_provider("Nobody")
    with pytest.raises(SessionError, match="Nobody is not available"):
        provider_version("Nobody")


class Opened:
    """A session of a provider that this machine does not have."""

    def __init__(self, text: str, *providers: str) -> None:
        options = ort.SessionOptions()
        record_claims(options)
        self._session = ort.InferenceSession(content(text), options)
        self._providers = providers
        self.get_provider_graph_assignment_info = self._session.get_provider_graph_assignment_info

    def get_providers(self) -> list[str]:
        return [*self._providers, *self._session.get_providers()]


def test_a_provider_that_takes_no_node() -> None:
    model = ir.from_proto(onnx.parser.parse_model(MODEL))  # opset 23 has no Sin on WebGPU
    opened: Any = Opened(MODEL, WEBGPU)
    with pytest.warns(RuntimeWarning, match="takes no node of the model, which runs on CPUExec"):
        warn_of_unused(opened, [WEBGPU, CPU], model)
    with pytest.warns(RuntimeWarning, match="inspect --provider WebGpuExecutionProvider says why"):
        warn_of_unused(opened, [WEBGPU], None)


def test_a_provider_that_takes_nodes() -> None:
    text = MODEL.replace("23", "18")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened: Any = Opened(text, WEBGPU)
        warn_of_unused(opened, [WEBGPU], ir.from_proto(onnx.parser.parse_model(text)))
        warn_of_unused(opened, [CPU], None)


def test_a_provider_whose_library_is_missing() -> None:
    opened: Any = Opened(MODEL)
    with pytest.raises(SessionError, match="has WebGpuExecutionProvider, but cannot load it"):
        warn_of_unused(opened, [WEBGPU], None)
