"""Model packages of onnxruntime: one folder with variants of a model for several providers.

    folder/manifest.json
    folder/stock/model.onnx          CPUExecutionProvider
    folder/webgpu/model.onnx         WebGpuExecutionProvider
    folder/kernels/model.onnx        opened with our library, by its path

Format: ``model_package/README.md`` of onnxruntime, schema 1.0; ``executor_info["ort"]`` and the
selection of variants: ``onnxruntime/core/session/model_package/README.md``. Since 1.31,
``OrtApi::GetModelPackageApi`` opens packages in C.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir

from coreai_onnx.errors import SaveError
from coreai_onnx.model.files.loading import load_model
from coreai_onnx.model.files.program_files import MODEL_FILE, save_program
from coreai_onnx.model.metadata import TARGET
from coreai_onnx.runtime.deployment.packaged_file import PackagedFile
from coreai_onnx.targets.opsets import Target
from coreai_onnx.targets.providers import CPU, CUDA, WEBGPU

_SCHEMA = "1.0"
MANIFEST_FILE = "manifest.json"


class _Variant(NamedTuple):
    target: Target
    provider: str | None


VARIANTS = {
    # No variant has a ``device``: onnxruntime 1.31 knows that of plugins only.
    "stock": _Variant("onnxruntime", CPU),
    # Of variants of one provider, onnxruntime takes the first. It cannot register a library for
    # one, so that this variant has no provider, and is opened by those who do.
    "kernels": _Variant("kernels", None),
    "webgpu": _Variant("webgpu", WEBGPU),
    "cuda": _Variant("cuda", CUDA),
}
"""The variants of a package, by name."""
DEFAULT = ("stock", "kernels", "webgpu")


Optimizer = Callable[[ir.Model, Target], None]
"""Optimizes a model for a target, in place."""


def write_model_package(
    packaged: PackagedFile, folder: Path, variants: Sequence[str], optimize: Optimizer
) -> None:
    """Optimize the file for each variant, and write all of them with a manifest.

    Raises:
        SaveError: If there is no such variant, or onnxruntime's packages have no such setting.
        TargetError: If the file cannot be optimized for the target of a variant.
    """
    for setting in packaged.settings.keys() - {"threads"}:
        if packaged.settings[setting]:
            raise SaveError(f"onnxruntime's model packages have no setting for {setting!r}")
    for name in variants:
        if name not in VARIANTS:
            raise SaveError(f"there is no variant {name!r}; variants: {', '.join(VARIANTS)}")
    if not variants or len(set(variants)) < len(variants):
        raise SaveError("a package has at least one variant, and each once")
    for name in variants:
        (folder / name).mkdir()
        _write_variant(packaged, VARIANTS[name].target, folder / name, optimize)
    threads = packaged.settings.get("threads")
    options = {} if threads is None else {"session.intra_op_num_threads": str(threads)}
    component = {"variants": {name: _body(name, options) for name in variants}}
    manifest = {
        "schema_version": _SCHEMA,
        "package_name": packaged.name,
        "components": {packaged.name: component},
    }
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


def _write_variant(
    packaged: PackagedFile, target: Target, folder: Path, optimize: Optimizer
) -> None:
    if packaged.model.metadata_props.get(TARGET) == target:
        packaged.copy(folder)
        return
    model = load_model(packaged.file)  # again, because the passes work in place
    optimize(model, target)
    save_program({"main": model}, folder / MODEL_FILE, debug_info="compact")


def _body(name: str, options: dict[str, str]) -> dict[str, Any]:
    variant = VARIANTS[name]
    # Without a provider, onnxruntime never selects the variant; the name of the executor is ours.
    executor = "coreai_onnx" if variant.provider is None else "ort"
    info: dict[str, Any] = {"model_file": MODEL_FILE}
    if options:
        info["session_options"] = options
    provider = {} if variant.provider is None else {"ep": variant.provider}
    return {"variant_directory": name, **provider, "executor_info": {executor: info}}
