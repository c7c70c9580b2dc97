"""Execution providers: claims, versions, and their errors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.errors import ProviderError, SessionError
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


def test_options_that_onnxruntime_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ort.SessionOptions()
    add_providers(options, {CPU: {"use_arena": "0"}})
    assert not options.enable_cpu_mem_arena
    monkeypatch.setattr(ort, "get_available_providers", lambda: [WEBGPU, CPU])
    with pytest.raises(ProviderError, match="cannot load it"):  # this onnxruntime has no WebGPU
        add_providers(options, {WEBGPU: {"preferredLayout": "NCHW"}})
    entry = "ep.webgpuexecutionprovider.preferredLayout"
    assert options.get_session_config_entry(entry) == "NCHW"


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
    with pytest.warns(RuntimeWarning) as caught:
        warn_of_unused(opened, [WEBGPU], None)
    (text,) = (str(one.message) for one in caught)
    assert 'optimize(target="webgpu") writes a file for it' in text
    assert text.endswith("coreai-onnx inspect --provider WebGpuExecutionProvider says why")


def test_a_provider_that_takes_nodes() -> None:
    text = MODEL.replace("23", "18")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened: Any = Opened(text, WEBGPU)
        warn_of_unused(opened, [WEBGPU], ir.from_proto(onnx.parser.parse_model(text)))
        warn_of_unused(opened, [CPU], None)


def test_a_provider_whose_library_is_missing() -> None:
    opened: Any = Opened(MODEL)
    with pytest.raises(ProviderError) as caught:
        warn_of_unused(opened, [WEBGPU], None)
    assert str(caught.value) == (
        f"onnxruntime {ort.__version__} has WebGpuExecutionProvider, but cannot load it: its "
        "library, or one that it needs, is missing; install what it needs, or leave the provider "
        "out to run on the CPU"
    )


def test_the_library_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "capi").mkdir()
    library = tmp_path / "capi" / "libonnxruntime_providers_webgpu.so"
    library.write_bytes(b"no library")
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "__init__.py"))
    opened: Any = Opened(MODEL)
    with pytest.raises(ProviderError, match=f"cannot load it: {library}: .*; install what it"):
        warn_of_unused(opened, [WEBGPU], None)


def test_what_onnxruntime_says_of_a_provider_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [WEBGPU, CPU])
    with pytest.raises(ProviderError, match=r"WebGpu.* but cannot load it: .*; install") as caught:
        add_providers(ort.SessionOptions(), {WEBGPU: {}})
    assert "\n" not in str(caught.value)


def test_a_failed_check_of_onnxruntime_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [WEBGPU, CPU])

    class Options:
        def add_provider(self, name: str, settings: dict[str, str]) -> None:
            place = "/onnxruntime_src/onnxruntime/core/context.cc:65 Initialize(int)::<lambda()>"
            raise RuntimeError(f"{place} status == Success was false. No supported\n adapters")

        def add_session_config_entry(self, name: str, value: str) -> None:
            pass

    options: Any = Options()
    with pytest.raises(ProviderError, match=r"cannot load it: No supported adapters; install"):
        add_providers(options, {WEBGPU: {}})
    with pytest.raises(ProviderError, match=r"load it with {'a': 'b'}: .*; correct the options"):
        add_providers(options, {WEBGPU: {"a": "b"}})
