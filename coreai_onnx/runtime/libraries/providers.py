"""Execution providers of onnxruntime: what they claim of a model, and what they compile."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import ProviderError, SessionError
from coreai_onnx.model.dependencies import SOURCE_LOCATION
from coreai_onnx.targets.coverage import has_kernels
from coreai_onnx.targets.opsets import PROVIDER_TARGETS
from coreai_onnx.targets.providers import CPU, WEBGPU, unavailable
from coreai_onnx.targets.releases import DEVICES, text_of

_RECORD = "session.record_ep_graph_assignment_info"


def add_providers(options: ort.SessionOptions, providers: Mapping[str, Mapping[str, str]]) -> None:
    """Add execution providers to session options.

    Args:
        options: The options.
        providers: The settings of the providers by name, in order of preference. The library of a
            plugin must be registered with onnxruntime.

    Raises:
        ProviderError: If one is not available; the message lists those that are.
    """
    for name, settings in providers.items():
        # `InferenceSession(providers=...)` does not accept the providers of plugins, and providers
        # that are built in without devices, as WebGPU is, are known by their names only.
        device = _devices().get(name)
        if name == CPU or device is None:
            _set_options(options, name, settings)
        if device is not None:
            options.add_provider_for_devices([device], dict(settings))
        elif name in ort.get_available_providers() and hasattr(options, "add_provider"):
            try:
                options.add_provider(name, dict(settings))
            except Exception as error:  # onnxruntime's exceptions share no base class
                raise _not_loaded(name, error, settings) from error
        else:
            raise missing_provider(name)


def _set_options(options: ort.SessionOptions, provider: str, settings: Mapping[str, str]) -> None:
    """Set the options of providers that onnxruntime adds without their options."""
    if provider == CPU and "use_arena" in settings:
        options.enable_cpu_mem_arena = settings["use_arena"] == "1"
    for name, value in settings.items() if provider == WEBGPU else ():
        options.add_session_config_entry(f"ep.{provider.lower()}.{name}", value)


def record_claims(options: ort.SessionOptions) -> None:
    """Let a session record the provider of each node, for `warn_of_unused`."""
    options.add_session_config_entry(_RECORD, "1")


def warn_of_unused(
    session: ort.InferenceSession, providers: Iterable[str], model: ir.Model | None
) -> None:
    """Warn of providers that run no node of a session.

    Args:
        session: The session, whose options `record_claims` has set.
        providers: The providers.
        model: The model of the session; None if it was not read.

    Raises:
        ProviderError: If onnxruntime could not load the library of a provider, and left it out.
    """
    others = [name for name in providers if name != CPU]
    if missing := [name for name in others if name not in session.get_providers()]:
        raise _not_loaded(missing[0], "its library, or one that it needs, is missing")
    if not others or not hasattr(session, "get_provider_graph_assignment_info"):
        return
    used = {part.ep_name for part in session.get_provider_graph_assignment_info()}
    # The nodes of providers that are built in are not recorded, as opposed to those of plugins.
    for name in others:
        if name not in used and (model is None or not has_kernels(model, name)):
            targets = [target for target, provider in PROVIDER_TARGETS.items() if provider == name]
            cure = "".join(f'optimize(target="{t}") writes a file for it, and ' for t in targets)
            warnings.warn(
                f"{name} takes no node of the model, which runs on {', '.join(sorted(used))}: "
                f"{cure}coreai-onnx inspect --provider {name} says why",
                RuntimeWarning,
                stacklevel=2,
            )


def provider_version(name: str) -> str:
    """Return the version of an execution provider.

    Raises:
        ProviderError: If it is not available.
    """
    if not has_provider(name):
        raise missing_provider(name)
    device = _devices().get(name)
    version = None if device is None else device.ep_metadata.get("version")
    return str(version or ort.__version__)


def claimed_nodes(model: bytes, provider: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the execution provider that onnxruntime assigns each node of a model to, by name.

    Args:
        model: The model, with its weights.
        provider: The provider to ask; the CPU gets the nodes that it does not claim.
        settings: Settings of the provider.

    Raises:
        ProviderError: If the provider is not available.
        SessionError: If it rejects the model.
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
        ProviderError: If the provider is not available.
        SessionError: If it cannot compile the model.
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
    # Failures are raised as errors, so that only fatal ones are logged.
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    add_providers(options, {provider: settings})
    return options


def _devices() -> dict[str, Any]:
    """Return the first device of each provider that has one, by the name of the provider."""
    # Releases before `DEVICES` list none.
    listed = ort.get_ep_devices() if hasattr(ort, "get_ep_devices") else []
    return {device.ep_name: device for device in reversed(listed)}


def has_provider(name: str) -> bool:
    """Return whether the installed onnxruntime has a provider, perhaps as a registered plugin."""
    return name in ort.get_available_providers() or name in _devices()


def missing_provider(name: str) -> ProviderError:
    """Return the error for a provider that is not available; it lists those that are."""
    if not hasattr(ort, "get_ep_devices"):
        return ProviderError(
            f"onnxruntime {ort.__version__} cannot list execution providers; "
            f"use {text_of(DEVICES)} or later"
        )
    available = (*ort.get_available_providers(), *_devices())
    return ProviderError(unavailable(name, available, ort.__version__))


def _not_loaded(
    name: str, reason: object, settings: Mapping[str, str] | None = None
) -> ProviderError:
    # onnxruntime says which library is missing in its log only.
    short = name.removesuffix("ExecutionProvider").lower()
    for path in Path(ort.__file__).with_name("capi").glob(f"*onnxruntime_providers_{short}.*"):
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            reason = error
    text = SOURCE_LOCATION.pattern.sub("", str(reason))
    line = " ".join(text.rpartition(" was false. ")[2].split())  # what a failed check in C++ says
    options = f" with {dict(settings)}" if settings else ""
    advice = "correct the options, install what" if settings else "install what"
    return ProviderError(
        f"onnxruntime {ort.__version__} has {name}, but cannot load it{options}: {line}; {advice} "
        "it needs, or leave the provider out to run on the CPU"
    )
