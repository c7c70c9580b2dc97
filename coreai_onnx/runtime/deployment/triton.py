"""Model repositories of Triton Inference Server, for its onnxruntime backend.

    folder/NAME/config.pbtxt
    folder/NAME/1/model.onnx         with its data files
    folder/NAME/1/libcoreai_onnx_ops.so

The fields are those of ``ModelConfig`` in Triton's ``model_config.proto``; the parameters are those
of the backend's documentation.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from coreai_onnx.errors import SaveError
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.deployment.packaged_file import SERVER_TYPES, PackagedFile, sizes_of

_VERSION = "1"
_BATCH_SIZE = 64
_TYPES = {**SERVER_TYPES, "string": "STRING", "bfloat16": "BF16"}
"""Triton's names of dtypes, in the configuration behind ``TYPE_``."""
_SETTINGS = {"threads", "kernels", "provider", "custom_ops"}
_ACCELERATORS = {"openvino": "cpu", "tensorrt": "gpu"}
"""Execution providers that the backend calls accelerators, and the device of each."""


def write_repository(
    packaged: PackagedFile, folder: Path, served_from: str | None, place: Path
) -> None:
    """Write a repository of one model.

    Args:
        packaged: The file.
        folder: The folder to write to.
        served_from: Where the server sees the repository; None for ``place``.
        place: Where the folder will be.

    Raises:
        SaveError: If Triton has no such dtype, setting or provider, or ``served_from`` is relative.
        SessionError: If a library is not there.
    """
    for setting in packaged.settings.keys() - _SETTINGS:
        if packaged.settings[setting]:
            raise SaveError(f"Triton's onnxruntime backend has no setting for {setting!r}")
    libraries = packaged.libraries
    seen = PurePosixPath(place.resolve().as_posix() if served_from is None else served_from)
    if not seen.is_absolute() and served_from is not None:
        raise SaveError(f"served_from must be an absolute path, got {served_from!r}")
    root = seen / packaged.name / _VERSION
    paths = [str(root / library.name) for library in libraries]
    content = "\n".join(_configuration(packaged, paths)) + "\n"
    version = folder / packaged.name / _VERSION
    version.mkdir(parents=True)
    packaged.copy(version)
    for library in libraries:
        shutil.copyfile(library, version / library.name)
    (version.parent / "config.pbtxt").write_text(content, "utf-8")


def _configuration(packaged: PackagedFile, libraries: Sequence[str]) -> Iterator[str]:
    inputs, outputs = packaged.interface.inputs, packaged.interface.outputs
    rows = _rows(packaged)
    yield f"name: {_text(packaged.name)}"
    yield 'backend: "onnxruntime"'
    yield f"max_batch_size: {rows}"
    for field, infos in (("input", inputs), ("output", outputs)):
        for info in infos:
            # With rows to join, the axis of rows is not part of Triton's dims.
            yield from _tensor(field, info, skipped=int(rows > 0))
    if rows:
        yield "dynamic_batching { }"
    provider = packaged.provider or "cpu"
    if provider not in {"cpu", "cuda", *_ACCELERATORS}:
        raise SaveError(
            f"Triton's onnxruntime backend has no provider {provider!r}; providers: cpu, cuda, "
            f"{', '.join(_ACCELERATORS)}"
        )
    on_gpu = provider == "cuda" or _ACCELERATORS.get(provider) == "gpu"
    yield f"instance_group [ {{ count: 1 kind: {'KIND_GPU' if on_gpu else 'KIND_CPU'} }} ]"
    if provider in _ACCELERATORS:
        kind = f"{_ACCELERATORS[provider]}_execution_accelerator"
        yield (
            f"optimization {{ execution_accelerators {{ {kind} [ {{ name: {_text(provider)} }} ] "
            "} }"
        )
    if (threads := packaged.settings.get("threads")) is not None:
        yield (
            f'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{threads}" }} }}'
        )
    if libraries:
        names = " ".join(f"op_library_filename: {_text(path)}" for path in libraries)
        yield f"model_operations {{ {names} }}"


def _rows(packaged: PackagedFile) -> int:
    """Return how many rows the server joins to one run; 0 for none.

    It joins requests along an axis that it leaves out of the configuration.
    """
    infos = (*packaged.interface.inputs, *packaged.interface.outputs)
    first = {info.dims[0] if info.dims else None for info in infos}
    if packaged.batch_size is None:  # only if it is plain that the first axis counts rows
        (dim, *others) = first
        return _BATCH_SIZE if isinstance(dim, str) and not others else 0
    if not all(isinstance(dim, str) for dim in first):
        raise SaveError(
            "requests cannot be joined, because the first axis of an input or output does not have "
            "any number of rows: leave batch_size out"
        )
    return packaged.batch_size


def _tensor(field: str, info: TensorInfo, skipped: int) -> Iterator[str]:
    if info.dtype not in _TYPES:
        raise SaveError(f"Triton has no type for {field} {info}")
    dims = sizes_of(info)[skipped:]
    yield (
        f"{field} [ {{ name: {_text(info.name)} data_type: TYPE_{_TYPES[info.dtype]} "
        # A configuration has at least one dim: one number of a row is [1] for the client.
        f"dims: {dims or [1]}{'' if dims else ' reshape: { shape: [ ] }'} }} ]"
    )


def _text(value: str) -> str:
    """Return a string of protobuf's text format, whose escapes JSON's are among."""
    return json.dumps(value, ensure_ascii=False)
