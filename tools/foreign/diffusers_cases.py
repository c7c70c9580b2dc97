"""Denoisers and autoencoders of diffusers, each from a small configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tools.foreign.case import Case, Inputs, Size, image, imported

TEXT_WIDTH = 32


def _side(size: Size) -> int:
    return size.side // 4


def _steps(size: Size) -> torch.Tensor:
    return torch.randint(1, 900, (size.batch,))


def _text(size: Size) -> torch.Tensor:
    return torch.randn(size.batch, size.length, TEXT_WIDTH)


def _latent(size: Size, channels: int = 4) -> torch.Tensor:
    return torch.randn(size.batch, channels, _side(size), _side(size))


def _fixed_latent(size: Size, channels: int = 4) -> torch.Tensor:
    return torch.randn(size.batch, channels, 16, 16)


def _unconditional(size: Size) -> Inputs:
    return {"sample": _latent(size, 3), "timestep": _steps(size)}


def _conditional(size: Size) -> Inputs:
    return {
        "sample": _latent(size),
        "timestep": _steps(size),
        "encoder_hidden_states": _text(size),
    }


def _video(size: Size) -> Inputs:
    return {
        "sample": torch.randn(size.batch, 4, 4, 16, 16),
        "timestep": _steps(size),
        "encoder_hidden_states": _text(size),
    }


def _waveform(size: Size) -> Inputs:
    return {"sample": torch.randn(size.batch, 2, 64 * size.length)}


def _labelled(size: Size) -> Inputs:
    return {
        "hidden_states": _fixed_latent(size),
        "timestep": _steps(size),
        "class_labels": torch.randint(0, 10, (size.batch,)),
    }


def _written(size: Size) -> Inputs:
    return {
        "hidden_states": _fixed_latent(size),
        "encoder_hidden_states": _text(size),
        "timestep": _steps(size),
    }


def _written_early(size: Size) -> Inputs:
    return {**_written(size), "timestep": torch.rand(size.batch)}


def _sd3(size: Size) -> Inputs:
    return {**_written(size), "pooled_projections": torch.randn(size.batch, 64)}


def _flux(size: Size) -> Inputs:
    return {
        "hidden_states": torch.randn(size.batch, 16, 4),
        "encoder_hidden_states": _text(size),
        "pooled_projections": torch.randn(size.batch, 32),
        "timestep": torch.rand(size.batch),
        "img_ids": torch.randint(0, 4, (16, 3)).float(),
        "txt_ids": torch.zeros(size.length, 3),
    }


def _wan(size: Size) -> Inputs:
    return {
        "hidden_states": torch.randn(size.batch, 4, 2, 16, 16),
        "encoder_hidden_states": _text(size),
        "timestep": _steps(size),
    }


def _prior(size: Size) -> Inputs:
    return {
        "hidden_states": torch.randn(size.batch, 32),
        "timestep": _steps(size),
        "proj_embedding": torch.randn(size.batch, 32),
        "encoder_hidden_states": torch.randn(size.batch, 12, 32),
    }


def _pixart(size: Size) -> Inputs:
    return {**_written(size), "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}


def _control(size: Size) -> Inputs:
    return {
        **_conditional(size),
        "controlnet_cond": torch.randn(size.batch, 3, 8 * _side(size), 8 * _side(size)),
    }


def _make(name: str, given: dict[str, Any]) -> torch.nn.Module:
    made: torch.nn.Module = imported(f"diffusers.{name}")(**given)
    return made


def _case(name: str, inputs: Callable[[Size], Inputs], label: str = "", **given: Any) -> Case:
    make = functools.partial(_make, name, given)
    return Case(f"diffusers/{name}{label}", "diffusers", make, inputs)


_UNET: dict[str, Any] = {
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
}
_HEADS: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 8}
_CROSS_DOWN = ("CrossAttnDownBlock2D", "DownBlock2D")
_CROSS_UP = ("UpBlock2D", "CrossAttnUpBlock2D")

DIFFUSERS = (
    _case(
        "UNet2DModel",
        _unconditional,
        **_UNET,
        sample_size=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    ),
    _case(
        "UNet2DConditionModel",
        _conditional,
        **_UNET,
        down_block_types=_CROSS_DOWN,
        up_block_types=_CROSS_UP,
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=2,
    ),
    _case(
        "ControlNetModel",
        _control,
        **_UNET,
        down_block_types=_CROSS_DOWN,
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=2,
        conditioning_embedding_out_channels=(8, 8, 16, 16),
    ),
    _case(
        "UNet3DConditionModel",
        _video,
        **_UNET,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,
    ),
    _case(
        "AutoencoderKL",
        image("sample"),
        **_UNET,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    ),
    _case(
        "AutoencoderTiny",
        image("sample"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 2),
        num_decoder_blocks=(2, 1),
    ),
    _case(
        "VQModel",
        image("sample"),
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        num_vq_embeddings=32,
    ),
    _case(
        "AsymmetricAutoencoderKL",
        image("sample"),
        norm_num_groups=4,
        down_block_out_channels=(8,),
        up_block_out_channels=(8,),
    ),
    _case(
        "DiTTransformer2DModel",
        _labelled,
        **_HEADS,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=16,
        norm_num_groups=4,
        num_embeds_ada_norm=1000,
    ),
    _case(
        "PixArtTransformer2DModel",
        _pixart,
        **_HEADS,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=16,
        cross_attention_dim=32,
        caption_channels=TEXT_WIDTH,
        use_additional_conditions=False,
    ),
    _case(
        "SD3Transformer2DModel",
        _sd3,
        **_HEADS,
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        joint_attention_dim=TEXT_WIDTH,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        pos_embed_max_size=16,
    ),
    _case(
        "FluxTransformer2DModel",
        _flux,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ),
    _case(
        "SanaTransformer2DModel",
        _written,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=16,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=TEXT_WIDTH,
        sample_size=16,
    ),
    _case(
        "AuraFlowTransformer2DModel",
        _written_early,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=TEXT_WIDTH,
        pos_embed_max_size=64,
    ),
    _case(
        "WanTransformer3DModel",
        _wan,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=12,
        text_dim=TEXT_WIDTH,
        freq_dim=32,
        ffn_dim=32,
        cross_attn_norm=True,
    ),
    _case(
        "PriorTransformer",
        _prior,
        **_HEADS,
        num_layers=2,
        embedding_dim=32,
        num_embeddings=12,
        additional_embeddings=4,
    ),
    _case(
        "AutoencoderOobleck",
        _waveform,
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        decoder_channels=8,
        decoder_input_channels=4,
        channel_multiples=[1, 2],
    ),
)
"""Every case, in the order of the sweep."""
