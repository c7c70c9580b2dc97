"""Models whose layer of embeddings has the encoders of pictures and sound: Phi-4-multimodal.

transformers arranges the tiles of a picture before the projector; as this computes each feature
alone, the files have it, and the caller arranges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim

from coreai_onnx.export.compat.patches import patched
from coreai_onnx.huggingface.media.examples import COUNT
from coreai_onnx.huggingface.media.model_part import ModelInput, ModelPart
from coreai_onnx.model.files.program_files import MEDIA_FILES

LAYER = "embed_tokens_extend"
PIXELS, PIXELS_MASK = "pixel_values", "image_attention_mask"
SOUND, SOUND_MASK = "audio_input_features", "audio_attention_mask"
_FRAMES = "number_of_frames"
_LONGEST = 500
"""Positions of the encoder of sound: longer sounds are cut by transformers."""


def extension_parts(model: Any) -> dict[str, ModelPart]:
    """Return the encoders of a ``Phi4MultimodalForCausalLM``, by the names of their files."""
    layer = getattr(model.base_model, LAYER)
    return {
        MEDIA_FILES["image"]: _pictures(layer.image_embed, model.config.vision_config),
        MEDIA_FILES["audio"]: _sounds(layer.audio_embed, model.config.audio_config),
    }


def _pictures(layer: Any, config: Any) -> ModelPart:
    def project(features: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(layer.img_projection_up(features))
        return layer.img_projection_down(hidden)  # type: ignore[no-any-return]  # a layer

    def compute(pixels: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        features = layer.get_img_features(pixels, attention_mask=mask != 0)
        ends = (layer.sub_img_feature_extensor, layer.global_img_feature_extensor)
        return [project(features), *map(project, ends)]

    tiles, size = 2, config.crop_size
    places = size // config.patch_size
    dims = {0: COUNT["image"]}
    inputs = [
        ModelInput(PIXELS, (tiles, config.num_channels, size, size), dims),
        ModelInput(PIXELS_MASK, (tiles, places, places), dims, 1),
    ]
    # The ends of a row of a picture, and of the picture.
    return ModelPart(layer, compute, inputs, ["image_features", "image_newline", "image_separator"])


def _sounds(layer: Any, config: Any) -> ModelPart:
    def compute(sounds: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        with patched(type(layer.encoder), "_streaming_mask", lambda _: _chunks):
            state = layer.encoder(sounds, mask != 0)
        return [
            getattr(layer, f"down_proj_for_{name}")(
                torch.nn.functional.gelu(getattr(layer, f"up_proj_for_{name}")(state))
            )
            for name in ("speech", "vision_speech")
        ]

    sounds, frames = 2, 5 * config.time_reduction
    longest = _LONGEST * config.time_reduction
    dims = {0: COUNT["audio"], 1: Dim(_FRAMES, min=config.time_reduction, max=longest)}
    inputs = [
        ModelInput(SOUND, (sounds, frames, config.input_size), dims),
        ModelInput(SOUND_MASK, (sounds, frames), dims, 1),
    ]
    # Sounds that come with pictures have another projector.
    names = ["audio_features", "audio_features_beside_images"]
    return ModelPart(layer, compute, inputs, names)


def _chunks(_: Any, length: int, batch: int, size: int, before: int) -> torch.Tensor:
    """Return which frames attend to which: those of a chunk to it, and to the chunks before.

    transformers computes it in NumPy, which needs a fixed length.
    """
    del batch
    if size <= 0:
        return torch.ones(1, 1, 1, dtype=torch.bool)
    chunk = torch.arange(length) // size
    distance = chunk[:, None] - chunk[None, :]
    return ((distance >= 0) & (distance <= before))[None]
