"""Adapters of peft as inputs of an exported decoder."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from coreai_onnx.errors import GenerationError, SaveError, failures_as
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.model.interface import LORA_A, LORA_B, TensorInfo
from coreai_onnx.model.metadata import read_ranges
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.runtime.tensors.values import write_adapter_file

Adapter = Mapping[str, Array]
"""Values of inputs by name: ``[1, in_features, rank]`` and ``[1, rank, out_features]``."""
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_OTHER_COMPUTATIONS = (
    *("use_dora", "use_qalora", "use_bdlora", "lora_bias", "modules_to_save", "target_parameters"),
    *("trainable_token_indices", "layer_replication", "alora_invocation_tokens", "arrow_config"),
    *("megatron_config", "monteclora_config", "velora_config", "kasa_config"),
)
"""Settings of peft with which an adapter is more than two factors of each layer."""
_CHANGES_THE_BASE = ("pissa", "corda", "olora", "loftq", "orthogonal", "lora_ga")
"""Initial values for which peft subtracts the adapter from the weights of the base model."""
_SELECTIONS = ("exclude_modules", "layers_to_transform", "layers_pattern")
"""Settings that leave out layers which ``target_modules`` names."""


def adapter_inputs(session: Session) -> dict[str, TensorInfo]:
    """Return the inputs for adapters by name; only their rows and ranks are symbolic.

    Raises:
        GenerationError: If the model has none.
    """
    infos = {x.name: x for x in session.optional_inputs if x.name.endswith((LORA_A, LORA_B))}
    if not infos:
        raise GenerationError(
            "the model has no inputs for adapters: export it with export_model(..., lora=True)"
        )
    ranges = read_ranges(session.ort.get_modelmeta().custom_metadata_map)
    return {
        name: replace(info, dims=tuple(ranges.get(str(dim), (None, dim))[1] for dim in info.dims))
        for name, info in infos.items()
    }


def read_adapter(folder: str | PathLike[str], session: Session) -> Adapter:
    """Read an adapter that peft saved.

    Args:
        folder: The folder, with ``adapter_config.json`` and ``adapter_model.safetensors``.
        session: The decoder that it is for.

    Returns:
        The factors of each layer, in the dtype of the inputs; the scale is in ``lora_B``.

    Raises:
        GenerationError: If a file is missing or broken, the adapter is of another kind than LoRA,
            or it does not fit the layers of the model.
    """
    infos, path = adapter_inputs(session), Path(folder)
    for name in (SETTINGS, WEIGHTS):
        if not (path / name).is_file():
            raise GenerationError(f"{path}: there is no {name}; give a folder that peft saved")
    with failures_as(GenerationError, f"cannot read {path / SETTINGS}"):
        content = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
    with failures_as(GenerationError, f"cannot read {path / WEIGHTS}"):
        tensors = load_file(path / WEIGHTS)
    with failures_as(GenerationError, f"{path}: the adapter cannot be used"):
        return dict(_factors(_Settings.of(content), tensors, infos))


@dataclass(frozen=True)
class _Settings:
    """What ``adapter_config.json`` says about the scale and the layers.

    Attributes:
        content: The whole file.
    """

    content: Mapping[str, Any]

    @classmethod
    def of(cls, content: Any) -> _Settings:
        """Check that the adapter is one of LoRA, and that its settings have the expected kinds."""
        if not isinstance(content, dict):
            raise ValueError(f"{SETTINGS} is a JSON {type(content).__name__}, not an object")
        if content.get("peft_type") != "LORA":
            kind = content.get("peft_type")
            raise ValueError(f"peft_type is {kind!r:.40}; only adapters of LORA are supported")
        for name in _OTHER_COMPUTATIONS:
            if content.get(name):
                raise ValueError(f"{name}={content[name]!r:.40} is not supported")
        if content.get("bias", "none") != "none":
            raise ValueError(f"bias={content['bias']!r:.40} is not supported, only 'none'")
        start = content.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGES_THE_BASE):
            raise ValueError(
                f"init_lora_weights={start!r:.40} changes the weights of the base model: save the "
                "adapter with path_initial_model_for_weight_conversion"
            )
        return cls(content)

    def rank(self, layer: str) -> int:
        """Return the rank of a layer."""
        return int(self._of_layer("rank_pattern", layer, self.content["r"]))

    def scale(self, layer: str) -> float:
        """Return what the product of the factors is multiplied by."""
        alpha = float(self._of_layer("alpha_pattern", layer, self.content["lora_alpha"]))
        rank = self.rank(layer)
        return alpha / (math.sqrt(rank) if self.content.get("use_rslora") else rank)

    def _of_layer(self, pattern: str, layer: str, default: Any) -> Any:
        # As get_pattern_key of peft: the first key that matches the end of the path.
        values = self.content.get(pattern) or {}
        matches = (x for key, x in values.items() if re.match(rf"(.*\.)?({key})$", layer))
        return next(matches, default)

    def targets(self, layer: str) -> bool:
        """Return whether the adapter must have factors of a layer."""
        names = self.content.get("target_modules") or []
        if any(self.content.get(name) for name in _SELECTIONS):
            return False
        if isinstance(names, str):
            return re.fullmatch(names, layer) is not None
        return any(layer == name or layer.endswith(f".{name}") for name in names)


def _factors(
    settings: _Settings, tensors: Mapping[str, torch.Tensor], infos: Mapping[str, TensorInfo]
) -> Iterator[tuple[str, Array]]:
    """Yield the values of inputs by name."""
    by_layer = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    for name in by_layer:
        if name not in infos:
            what = "factors of the layer" if name.endswith((LORA_A, LORA_B)) else "the tensor"
            raise ValueError(f"the model has no input for {what} {_layer(name)}")
    for name, info in infos.items():
        layer = _layer(name)
        if name not in by_layer:
            if (
                settings.targets(layer)
                or f"{layer}{LORA_A}" in by_layer
                or f"{layer}{LORA_B}" in by_layer
            ):
                raise ValueError(f"{name} is missing; is it an adapter of another model?")
            continue
        rank = settings.rank(layer)
        sizes = tuple(rank if isinstance(dim, str) else dim for dim in info.dims[:0:-1])
        if tuple(by_layer[name].shape) != sizes:
            raise ValueError(
                f"{name} is {list(by_layer[name].shape)}, expected {list(sizes)}, with rank {rank}"
            )
        matrix = by_layer[name].float() * (settings.scale(layer) if name.endswith(LORA_B) else 1.0)
        yield name, np.ascontiguousarray(matrix.T.numpy()[None], info.numpy_dtype)


def _layer(name: str) -> str:
    return name.removesuffix(LORA_A).removesuffix(LORA_B)


def factors_by_row(adapters: Sequence[Adapter | None], session: Session) -> dict[str, Array]:
    """Return the values of inputs for a batch, with an adapter for each row.

    One that all rows have is one matrix for all of them. Others are stacked, with zeros up to the
    largest rank of a layer, and zeros alone for rows without an adapter.
    """
    if all(one is adapters[0] for one in adapters):
        return dict(adapters[0] or {})
    stacked: dict[str, Array] = {}
    for name, info in adapter_inputs(session).items():
        matrices = [None if one is None else one.get(name) for one in adapters]
        present = [matrix for matrix in matrices if matrix is not None]
        if not present:
            continue
        shape = np.max([matrix.shape for matrix in present], axis=0)
        whole = stacked[name] = np.zeros((len(matrices), *shape[1:]), info.numpy_dtype)
        for row, matrix in enumerate(matrices):
            if matrix is not None:
                whole[row, : matrix.shape[1], : matrix.shape[2]] = matrix[0]
    return stacked


def adapter_of(name: str, loaded: Mapping[str, Adapter], session: Session) -> Adapter:
    """Return an adapter by its name, or read it from its folder.

    Raises:
        GenerationError: If it is neither, or the folder cannot be read.
    """
    if name in loaded:
        return loaded[name]
    if not (Path(name) / SETTINGS).is_file():
        names = ", ".join(loaded) or "none"
        raise GenerationError(f"there is no adapter {name!r:.80}; loaded: {names}")
    return read_adapter(name, session)


def with_adapters(
    session: Session,
    loaded: Mapping[str, Adapter],
    names: str | Sequence[str | None],
    sizes: tuple[int, int],
) -> Session:
    """Return a stream of a decoder with an adapter for each row.

    Args:
        session: The decoder.
        loaded: The loaded adapters by name.
        names: One adapter for all prompts, or one or None for each.
        sizes: The number of prompts, and of rows for each.

    Raises:
        GenerationError: If there is no such adapter, or there are more or fewer than prompts.
    """
    count, copies = sizes
    each = [names] * count if isinstance(names, str) else list(names)
    if len(each) != count:
        raise GenerationError(f"adapter has {len(each)} names, and there are {count} prompts")
    by_name = {name: adapter_of(name, loaded, session) for name in each if name is not None}
    rows = [None if name is None else by_name[name] for name in each for _ in range(copies)]
    return session.with_inputs(**factors_by_row(rows, session))


def write_adapter(adapter: Adapter, file: Path) -> None:
    """Write an adapter in the format of ``onnxruntime.LoraAdapter``.

    Raises:
        SaveError: If the file cannot be written.
    """
    # onnxruntime writes to a path only, and in place.
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "adapter"
        write_adapter_file(temporary, adapter)
        with failures_as(SaveError, f"cannot write {file}"), all_or_nothing() as new:
            new.create(file).write(temporary.read_bytes())
