"""Pipelines of diffusers whose modules are sessions."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.modeling_outputs import ModelOutput

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.diffusion.components import bound_inputs
from coreai_onnx.huggingface.diffusion.loading import (
    class_of,
    import_diffusers,
    parts_of,
    read_index,
)
from coreai_onnx.huggingface.diffusion.recording import DECODE, ENCODE
from coreai_onnx.model.files.program_files import MODEL_FILE
from coreai_onnx.model.python.builder.values import to_torch
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.runtime.sessions.session import Session


def open_pipeline(folder: str | PathLike[str], **settings: Any) -> Any:
    """Return the pipeline of diffusers of an exported folder, whose modules run in onnxruntime.

    Args:
        folder: A folder that `export_model` or optimum wrote.
        **settings: As for `coreai_onnx.session`: ``kernels``, ``threads``, ``provider``.

    Raises:
        ModelSourceError: If it is not such a folder, or diffusers is not installed.
        SessionError: If a file cannot be opened.
    """
    path = Path(folder)
    index = read_index(path)
    modules = {}
    for name, entry in index.items():
        files = {part: path / part / MODEL_FILE for part in parts_of(name)}
        sessions = {part: session(x, **settings) for part, x in files.items() if x.is_file()}
        if sessions:
            modules[name] = _module(path, entry, sessions)
    if not modules:
        raise ModelSourceError(f"{path}: there is no exported module; is it a folder of an export?")
    diffusers = import_diffusers(path)
    with failures_as(ModelSourceError, f"cannot open the pipeline of {path}"):
        base = diffusers.DiffusionPipeline
        # The base does not know which modules are optional, and would load Wan's transformer.
        kind = getattr(diffusers, base.load_config(path)["_class_name"], base)
        return kind.from_pretrained(path, local_files_only=True, low_cpu_mem_usage=False, **modules)


def _module(path: Path, entry: tuple[str, str], sessions: dict[str, Session]) -> torch.nn.Module:
    """Return a module of the original class without weights, which calls sessions."""
    first = next(iter(sessions))
    model_class: Any = class_of(path, first, entry)
    module: torch.nn.Module
    with torch.device("meta"), failures_as(ModelSourceError, f"cannot build {path / first}"):
        if issubclass(model_class, transformers.PreTrainedModel):
            module = model_class(model_class.config_class.from_pretrained(path / first))
        else:
            module = model_class.from_config(model_class.load_config(path / first))
    dtypes = [info.dtype for info in sessions[first].outputs if info.dtype.startswith("float")]
    _without_memory(module, getattr(torch, dtypes[0]))
    for name, opened in sessions.items():
        method = {ENCODE: "encode", DECODE: "decode"}.get(name, "forward")
        setattr(module, method, _runs(name, opened, getattr(module, method)))
    module.eval()
    return module


def _without_memory(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Give a module parameters of one element each, expanded to their shapes.

    Pipelines read dtype, device and some shapes of a module.
    """
    for inner in module.modules():
        tensors = (*inner.named_parameters(recurse=False), *inner.named_buffers(recurse=False))
        for name, old in tensors:
            kind = dtype if old.is_floating_point() else old.dtype
            new = torch.zeros((), dtype=kind).expand(old.shape)
            is_parameter = isinstance(old, torch.nn.Parameter)
            setattr(
                inner, name, torch.nn.Parameter(new, requires_grad=False) if is_parameter else new
            )


def _as_returned(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return outputs under the names of the module's result."""
    if name == ENCODE:
        if "latent_parameters" not in tensors:
            return {"latents": tensors["latent_sample"]}
        from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

        return {"latent_dist": DiagonalGaussianDistribution(tensors["latent_parameters"])}
    result: dict[str, Any] = {}
    for output, tensor in tensors.items():
        field, _, place = output.partition(".")
        if place:
            result[field] = (*result.get(field, ()), tensor)
        else:
            result["sample" if output.startswith("out_") else output] = tensor
    return result


def _runs(name: str, opened: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes the arguments of a module's method, and calls a session."""
    names = [info.name for info in opened.outputs]
    dtypes = {info.name: info.dtype for info in opened.inputs}

    def run(*args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        inputs = bound_inputs(name, original, args, kwargs)
        outputs = opened.run(**{n: _cast(x, dtypes[n]) for n, x in inputs.items() if n in dtypes})
        tensors = {n: to_torch(outputs[n], outputs[n].dtype.name) for n in names}
        result = _as_returned(name, tensors)
        return ModelOutput(**result) if return_dict else tuple(result.values())

    return run


def _cast(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return a floating tensor in the dtype of a file: an autoencoder may be wider."""
    return value.to(getattr(torch, dtype)) if value.is_floating_point() else value
