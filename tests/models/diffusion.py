"""Small pipelines of diffusers with random weights, and tokenizers that are built here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from tests.support.huggingface_folders import tokenizer

WIDTH = 32
"""The width of embedded texts."""
_TOKENS = 16
_UNET: dict[str, Any] = {
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "sample_size": 16,
    "cross_attention_dim": WIDTH,
    "attention_head_dim": 2,
}
_CROSS: dict[str, Any] = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "UpBlock2D"),
}


def stable_diffusion() -> Any:
    """Return a pipeline like Stable Diffusion 1.5, with the fewest layers: tests export it."""
    return diffusers.StableDiffusionPipeline(
        **_clip("", layers=1),
        unet=diffusers.UNet2DConditionModel(**_UNET, **_CROSS),
        vae=_vae(layers_per_block=0, block_out_channels=(8,) * 4),
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def stable_diffusion_xl() -> Any:
    """Return a pipeline like Stable Diffusion XL."""
    unet = diffusers.UNet2DConditionModel(
        **{**_UNET, "cross_attention_dim": 2 * WIDTH, "attention_head_dim": (2, 4)},
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
    )
    return diffusers.StableDiffusionXLPipeline(
        **_clip(""),
        **_clip("_2", projected=True),
        unet=unet,
        vae=_vae(),
        scheduler=diffusers.EulerDiscreteScheduler(),
    )


def stable_diffusion_3() -> Any:
    """Return a pipeline like Stable Diffusion 3.5."""
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=32,
        pooled_projection_dim=2 * WIDTH,
        out_channels=4,
        pos_embed_max_size=24,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    )
    return diffusers.StableDiffusion3Pipeline(
        **_clip("", projected=True),
        **_clip("_2", projected=True),
        **_t5("_3", width=2 * WIDTH),
        transformer=transformer,
        vae=_vae(shift_factor=0.06, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def flux() -> Any:
    """Return a pipeline like Flux.1 with an embedded guidance."""
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    return diffusers.FluxPipeline(
        **_clip(""),
        **_t5("_2"),
        transformer=transformer,
        vae=_vae(shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )


def animate_diff() -> Any:
    """Return a pipeline like AnimateDiff, which makes videos."""
    motion = diffusers.MotionAdapter(
        block_out_channels=_UNET["block_out_channels"],
        motion_layers_per_block=1,
        motion_mid_block_layers_per_block=1,
        motion_num_attention_heads=2,
        motion_norm_num_groups=4,
        motion_max_seq_length=8,
    )
    return diffusers.AnimateDiffPipeline(
        **_clip(""),
        unet=diffusers.UNet2DConditionModel(**_UNET, **_CROSS),
        motion_adapter=motion,
        vae=_vae(),
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
    )


def wan() -> Any:
    """Return a pipeline like Wan 2.1, which makes videos."""
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=WIDTH,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
        rope_max_seq_len=32,
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        latents_mean=[0.0] * 4,
        latents_std=[20.0] * 4,  # otherwise its biases hide the latents
    )
    return diffusers.WanPipeline(
        **_t5("", model=transformers.UMT5EncoderModel),
        transformer=transformer,
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


PIPELINES: dict[str, Callable[[], Any]] = {
    "Stable Diffusion 1.5": stable_diffusion,
    "Stable Diffusion XL": stable_diffusion_xl,
    "Stable Diffusion 3": stable_diffusion_3,
    "Flux": flux,
    "AnimateDiff": animate_diff,
    "Wan": wan,
}
"""The pipelines of docs/diffusion.md."""


def small_pipeline(name: str) -> Any:
    """Return a pipeline with the random weights of a fixed seed."""
    torch.manual_seed(0)
    pipeline = PIPELINES[name]()
    for module in pipeline.components.values():
        if isinstance(module, torch.nn.Module):
            module.eval()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _clip(suffix: str, *, projected: bool = False, layers: int = 2) -> dict[str, Any]:
    config = transformers.CLIPTextConfig(
        vocab_size=260,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=_TOKENS,
        projection_dim=WIDTH,
        hidden_act="gelu" if suffix else "quick_gelu",
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    name = "CLIPTextModelWithProjection" if projected else "CLIPTextModel"
    return _text(getattr(transformers, name)(config), suffix)


def _t5(
    suffix: str, *, width: int = WIDTH, model: Any = transformers.T5EncoderModel
) -> dict[str, Any]:
    config = model.config_class(
        vocab_size=260,
        d_model=width,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        eos_token_id=2,
    )
    return _text(model(config), suffix)


def _text(model: Any, suffix: str) -> dict[str, Any]:
    words = tokenizer()
    words.model_max_length = _TOKENS
    return {f"text_encoder{suffix}": model, f"tokenizer{suffix}": words}


def _vae(**options: Any) -> Any:
    config = {
        "block_out_channels": (8, 8, 8, 16),  # 8 pixels for each latent, as the pipelines require
        "norm_num_groups": 4,
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "latent_channels": 4,
    }
    return diffusers.AutoencoderKL(**{**config, **options})
