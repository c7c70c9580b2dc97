"""Encoders inside of a layer of embeddings, in sessions: Phi-4-multimodal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from coreai_onnx.huggingface.generation.media_layers import InSession, Pending, run_session
from coreai_onnx.huggingface.media.extensions import (
    LAYER,
    PIXELS,
    PIXELS_MASK,
    SOUND,
    SOUND_MASK,
)
from coreai_onnx.runtime.sessions.session import Session


def replace_extension(base: Any, decoder: Any, sessions: Mapping[str, Session]) -> None:
    """Let sessions compute the features of pictures and sound, and all layers of the decoder.

    Args:
        base: The model without its head.
        decoder: The layer that runs the decoder.
        sessions: The sessions, by modality.
    """
    layer = getattr(base, LAYER)
    if "image" in sessions:
        _replace_pictures(layer.image_embed, sessions["image"])
    if "audio" in sessions:
        _replace_sounds(layer.audio_embed, sessions["audio"])
    last = InSession(lambda *args, **kwargs: decoder(*args, **kwargs).last_hidden_state)
    base.layers, base.norm = torch.nn.ModuleList([last]), torch.nn.Identity()
    base.rotary_emb = InSession(lambda *_, **__: None)


def _replace_pictures(layer: Any, session: Session) -> None:
    arranged: list[torch.Tensor] = []

    def features(pixels: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        inputs = {PIXELS: pixels, PIXELS_MASK: attention_mask}
        result, newline, separator = run_session(session, **inputs)
        layer.sub_img_feature_extensor = torch.nn.Parameter(newline, requires_grad=False)
        layer.global_img_feature_extensor = torch.nn.Parameter(separator, requires_grad=False)
        layer.image_dim_out = result.shape[-1]
        return result

    def keep(picture: torch.Tensor) -> Pending:
        arranged[:] = [picture]
        return Pending()

    layer.get_img_features = features
    layer.img_projection_up = _with_bias(keep)
    layer.img_projection_down = InSession(lambda _: arranged[0])


def _replace_sounds(layer: Any, session: Session) -> None:
    results: list[torch.Tensor] = []

    def encode(sounds: torch.Tensor, mask: torch.Tensor | None) -> Pending:
        mask = torch.ones(sounds.shape[:2]) if mask is None else mask
        results[:] = run_session(session, **{SOUND: sounds, SOUND_MASK: mask})
        return Pending()

    layer.encoder = InSession(encode)
    for place, name in enumerate(("speech", "vision_speech")):
        setattr(layer, f"up_proj_for_{name}", _with_bias(lambda pending: pending))
        down = InSession(lambda _, place=place: results[place])
        setattr(layer, f"down_proj_for_{name}", down)


def _with_bias(compute: Callable[[Any], Any]) -> InSession:
    """Return a layer with a bias, from which transformers reads device and dtype."""
    layer = InSession(compute)
    layer.bias = torch.zeros(0)
    return layer
