"""Execution providers of onnxruntime: their names, and the packages that contain them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coreai_onnx.errors import SessionError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
WEBGPU = "WebGpuExecutionProvider"
COREML = "CoreMLExecutionProvider"
NAMES: dict[str, str] = {
    "cpu": CPU,
    "cuda": CUDA,
    "webgpu": WEBGPU,
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "directml": "DmlExecutionProvider",
    "dml": "DmlExecutionProvider",
    "coreml": COREML,
    "qnn": "QNNExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "cann": "CANNExecutionProvider",
}
"""The short names that sessions and the command line accept."""
PACKAGES: dict[str, str] = {
    CPU: "onnxruntime",
    CUDA: "onnxruntime-gpu",
    WEBGPU: "onnxruntime-webgpu",
    "OpenVINOExecutionProvider": "onnxruntime-openvino",
    "TensorrtExecutionProvider": "onnxruntime-gpu",
    "DmlExecutionProvider": "onnxruntime-directml",
    "QNNExecutionProvider": "onnxruntime-qnn",
    "MIGraphXExecutionProvider": "onnxruntime-migraphx",
    "CANNExecutionProvider": "onnxruntime-cann",
}
"""The package on PyPI that has a provider."""
OPTIONS: dict[str, tuple[str, ...]] = {
    CPU: ("use_arena",),
    WEBGPU: (
        *("dawnBackendType", "defaultBufferCacheMode", "deviceId", "enableGraphCapture"),
        *("enableInt64", "enablePIXCapture", "forceCpuNodeNames", "maxStorageBufferBindingSize"),
        *("multiRotaryCacheConcatOffset", "powerPreference", "preferredLayout", "preserveDevice"),
        *("queryResolveBufferCacheMode", "storageBufferCacheMode", "uniformBufferCacheMode"),
        "validationMode",
    ),
}
"""The options of providers that ignore all others; of WebGPU those of onnxruntime 1.27."""
Choice = str | tuple[str, Mapping[str, object]]
"""An execution provider, perhaps with its options: ``("cuda", {"device_id": 1})``."""


def full_name(name: str) -> str:
    """Return onnxruntime's name of a provider, ``CUDAExecutionProvider`` for ``"cuda"``."""
    return NAMES.get(name.lower(), name)


def chosen_providers(choices: Choice | Iterable[Choice] | None) -> dict[str, dict[str, str]]:
    """Return the options of each provider by onnxruntime's name, in order of preference.

    Args:
        choices: Names of providers, short or onnxruntime's own, or pairs of a name and options; or
            one of them; None is none.

    Raises:
        SessionError: If one is neither, or has no such option.
    """
    chosen: dict[str, dict[str, str]] = {}
    alone = isinstance(choices, str) or _is_pair(choices)
    for choice in [choices] if alone else choices or ():
        name, options = choice if isinstance(choice, tuple) and _is_pair(choice) else (choice, {})
        if not (name and isinstance(name, str)):
            raise SessionError(
                f"a provider must be a name, or a name and its options, got {choice!r:.60}"
            )
        # onnxruntime takes text only: True is the option "1".
        texts = {k: str(int(v) if isinstance(v, bool) else v) for k, v in options.items()}
        _check_options(full_name(name), texts)
        chosen[full_name(name)] = texts
    return chosen


def _check_options(provider: str, options: Mapping[str, str]) -> None:
    # onnxruntime ignores options that these do not have, so that a misspelled one has no effect.
    names = OPTIONS.get(provider, options)
    if unknown := [name for name in options if name not in names]:
        raise SessionError(f"{provider} has no option {unknown[0]}; it has {', '.join(names)}")
    if provider == CPU and options.get("use_arena", "0") not in ("0", "1"):
        raise SessionError(f"{provider}: use_arena is 0 or 1, got {options['use_arena']}")


def on_cpu(choices: Choice | Iterable[Choice] | None) -> bool:
    """Return whether providers are the CPU only, where our kernels run."""
    return not chosen_providers(choices).keys() - {CPU}


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping)


def unavailable(name: str, available: Iterable[str], version: str) -> str:
    """Return the message for a provider that the installed onnxruntime does not have."""
    has = ", ".join(sorted(set(available)))
    if name == COREML:
        cure = "that of macOS has it"
    elif name in PACKAGES:
        cure = f"pip install {PACKAGES[name]} brings it, in place of this one"
    elif name.endswith("ExecutionProvider"):
        cure = (
            "the library of a plugin is registered with "
            "onnxruntime.register_execution_provider_library"
        )
    else:
        cure = f"names are {', '.join(NAMES)}, and those of onnxruntime"
    return f"{name} is not available in onnxruntime {version}, which has {has}; {cure}"
