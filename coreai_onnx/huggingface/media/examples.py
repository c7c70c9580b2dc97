"""Examples of what the encoders of pictures and sound take, from a model's configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.decoders import BATCH

COUNT = {"image": "number_of_images", "audio": "number_of_sounds"}
"""The dim of pictures and of sounds."""
_SIZES = {"florence_vision": 768}
"""The size of pictures that a configuration does not name: that of the published processors."""
_GRIDS = ((1, 4, 6), (1, 2, 4), (1, 6, 2))
"""Pictures of several sizes, in units of the patches that are merged to one."""


@dataclass(frozen=True)
class MediaExample:
    """The arguments of an encoder.

    Attributes:
        tensors: The arguments, by name.
        dims: Their dynamic dims, as for ``torch.export.export``.
    """

    tensors: Mapping[str, torch.Tensor]
    dims: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)


def example_of(model: Any, modality: str, takes: Callable[..., Any], count: int) -> MediaExample:
    """Return random pictures or sounds for a model.

    Args:
        model: The model.
        modality: ``"image"`` or ``"audio"``.
        takes: The method that is given them: its parameters tell how they are arranged.
        count: How many; pictures of a grid have different sizes.

    Raises:
        ModelSourceError: If the configuration does not tell what the encoder takes.
    """
    random = torch.Generator().manual_seed(count)
    names = inspect.signature(takes).parameters
    encoder = model.get_encoder(modality=modality)
    config = encoder.config
    if modality == "audio":
        return _sounds(config, count, random)
    channels = _setting(config, "num_channels", "in_channels", "in_chans")
    if "image_grid_thw" in names:
        return _grids(config, channels, count, random)
    size = _SIZES.get(config.model_type) or _setting(config, "image_size")
    height, width = _pair(size)
    shape: tuple[int, ...] = (count, channels, height, width)
    dims: dict[int, Any] = {0: COUNT["image"]}
    if "pixel_attention_mask" not in names:
        return MediaExample({"pixel_values": _noise(shape, random)}, {"pixel_values": dims})
    # Tiles of a picture, padded to the largest number of tiles and to the largest size.
    dims = {0: BATCH, 1: COUNT["image"]}
    mask = torch.ones(1 + count // 2, 2, height, width, dtype=torch.int64)
    mask[-1, :, :, width // 2 :] = 0
    pixels = _noise((len(mask), 2, channels, height, width), random) * mask[:, :, None]
    return MediaExample(
        {"pixel_values": pixels, "pixel_attention_mask": mask},
        {"pixel_values": dims, "pixel_attention_mask": dims},
    )


def _grids(config: Any, channels: int, count: int, random: torch.Generator) -> MediaExample:
    merge = config.spatial_merge_size
    grids = [(t, h * merge, w * merge) for t, h, w in (_GRIDS * count)[:count]]
    grid = torch.tensor(grids)
    size = channels * config.temporal_patch_size * config.patch_size**2
    pixels = _noise((int(grid.prod(1).sum()), size), random)
    # Patches are merged in whole squares.
    patches = merge**2 * Dim("number_of_features", min=1)
    tensors = {"pixel_values": pixels, "image_grid_thw": grid}
    return MediaExample(tensors, {"pixel_values": {0: patches}})


def _sounds(config: Any, count: int, random: torch.Generator) -> MediaExample:
    features = _noise((count, *spectrogram_size(config)), random)
    return MediaExample({"input_features": features}, {"input_features": {0: COUNT["audio"]}})


def with_mask(example: MediaExample, length: int) -> MediaExample:
    """Return an example with a mask of the encoder's frames, bool ``[sounds, 1, length, length]``.

    Args:
        example: The sounds.
        length: The number of frames of the encoder.
    """
    (name, features), (dims,) = next(iter(example.tensors.items())), example.dims.values()
    mask = torch.ones(len(features), 1, length, length, dtype=torch.bool)
    mask[-1, ..., length // 2 :] = False
    tensors = {name: features, "attention_mask": mask}
    return MediaExample(tensors, dict.fromkeys(tensors, dims))


def spectrogram_size(config: Any) -> tuple[int, int]:
    """Return the bins and frames that an encoder takes whose convolution has a stride of 2."""
    return _setting(config, "num_mel_bins"), 2 * _setting(config, "max_source_positions")


def _noise(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=random)


def _setting(config: Any, *names: str) -> Any:
    for name in names:
        if (value := getattr(config, name, None)) is not None:
            return value
    raise ModelSourceError(
        f"the configuration of the encoder ({config.model_type}) has no {' or '.join(names)}: "
        "what it takes is not known"
    )


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)
