"""Execution providers of onnxruntime: what they claim of a model, and what they compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.targets.releases import DEVICES, text_of

CPU = "CPUExecutionProvider"
_RECORD = "session.record_ep_graph_assignment_info"


def add_providers(options: ort.SessionOptions, providers: Mapping[str, Mapping[str, str]]) -> None:
    """Add execution providers to session options.

    Args:
        options: The options.
        providers: The settings of the providers by name, in order of preference. The library of a
            plugin must be registered with onnxruntime.

    Raises:
        SessionError: If one is not available; the message lists those that are.
    """
    for name, settings in providers.items():
        # `InferenceSession(providers=...)` does not accept the providers of plugins.
        options.add_provider_for_devices([_device(name)], dict(settings))


def provider_version(name: str) -> str:
    """Return the version of an execution provider.

    Raises:
        SessionError: If it is not available.
    """
    return str(_device(name).ep_metadata.get("version", ort.__version__))


def claimed_nodes(model: bytes, provider: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the execution provider that onnxruntime assigns each node of a model to, by name.

    Args:
        model: The model, with its weights.
        provider: The provider to ask; the CPU gets the nodes that it does not claim.
        settings: Settings of the provider.

    Raises:
        SessionError: If the provider is not available, or rejects the model.
    """
    options = _options(provider, settings)
    options.add_session_config_entry(_RECORD, "1")
    try:
        opened = ort.InferenceSession(model, options)
    except Exception as error:  # onnxruntime's exceptions share no base class below Exception
        raise SessionError(f"{provider} rejects the program\n  {error}") from error
    parts = opened.get_provider_graph_assignment_info()
    return {node.name: part.ep_name for part in parts for node in part.get_nodes()}


def compiled(model: bytes, provider: str, settings: Mapping[str, str]) -> bytes:
    """Return a model whose nodes an execution provider has compiled to ``EPContext`` nodes.

    Args:
        model: The model, with its weights.
        provider: The provider.
        settings: Settings of the provider.

    Raises:
        SessionError: If the provider is not available, or cannot compile the model.
    """
    options = _options(provider, settings)
    try:
        compiler = ort.ModelCompiler(options, model, embed_compiled_data_into_model=True)
        return bytes(compiler.compile_to_bytes())
    except Exception as error:  # onnxruntime's exceptions share no base class below Exception
        raise SessionError(f"{provider} cannot compile the part\n  {error}") from error


def _options(provider: str, settings: Mapping[str, str]) -> ort.SessionOptions:
    """Return options with which nodes keep their names."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    add_providers(options, {provider: settings})
    return options


def _device(name: str) -> Any:
    if not hasattr(ort, "get_ep_devices"):
        raise SessionError(
            f"onnxruntime {ort.__version__} cannot list execution providers; "
            f"use {text_of(DEVICES)} or later"
        )
    devices = ort.get_ep_devices()
    device = next((one for one in devices if one.ep_name == name), None)
    if device is None:
        names = ", ".join(sorted({one.ep_name for one in devices}))
        raise SessionError(
            f"the execution provider {name} is not available (available: {names})\n"
            "  register the library of a plugin first: "
            "onnxruntime.register_execution_provider_library"
        )
    return device
