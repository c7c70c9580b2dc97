"""Small models of pictures or sound and text, with prompts that have several of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

PLACEHOLDER, SOUND_PLACEHOLDER = 100, 99
TEXT: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 512,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip
GRID: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_heads": 4, "patch_size": 2,
    "temporal_patch_size": 2, "in_channels": 3, "spatial_merge_size": 2,
}  # fmt: skip
SOUND = {"num_mel_bins": 8, "max_source_positions": 16}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}


@dataclass(frozen=True)
class MediaModel:
    """A model and a prompt.

    Attributes:
        name: For test ids and tables.
        make: Builds the module, with random weights.
        inputs: Returns the arguments of ``generate``.
        task: The task of the export, of models that also generate from text alone.
    """

    name: str
    make: Callable[[], Any]
    inputs: Callable[[Any], dict[str, torch.Tensor]]
    task: str | None = None


def randomized(cls: Any, config: Any) -> Any:
    """Build a model whose weights are large enough for texts that vary."""
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
    return model


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def prompt(*parts: int) -> torch.Tensor:
    """Return tokens: a negative number stands for so many placeholders."""
    rows = [[PLACEHOLDER] * -part if part < 0 else [part] for part in parts]
    return torch.tensor([[token for row in rows for token in row]])


def _pixels(*parts: int, types: str = "") -> Callable[[Any], dict[str, torch.Tensor]]:
    def inputs(_: Any) -> dict[str, torch.Tensor]:
        ids = prompt(*parts)
        # PaliGemma's prompt is a prefix of type 0; Gemma 3 has a type of pictures.
        further = {"token_type_ids": (ids == PLACEHOLDER).long()} if types == "pictures" else {}
        further |= {"token_type_ids": torch.zeros_like(ids)} if types == "prefix" else {}
        return {"input_ids": ids, "pixel_values": noise(2, 3, 16, 16), **further}

    return inputs


def _grids(_: Any) -> dict[str, torch.Tensor]:
    """Two pictures of different sizes."""
    ids = prompt(102, -8, 5, 102, -4, 9)  # each after its token of a beginning
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == PLACEHOLDER).long(),
        "image_grid_thw": torch.tensor([[1, 8, 4], [1, 4, 4]]),
        "pixel_values": noise(48, 24),
    }


def _tiles(_: Any) -> dict[str, torch.Tensor]:
    """A whole picture, one of half the width, and padding."""
    mask = torch.ones(1, 3, 16, 16, dtype=torch.int64)
    mask[0, 1, :, 8:] = 0
    mask[0, 2] = 0
    pixels = noise(1, 3, 3, 16, 16) * mask[:, :, None]
    ids = prompt(1, -4, 5, 6, -4, 9)
    return {"input_ids": ids, "pixel_values": pixels, "pixel_attention_mask": mask}


def _any_resolution(model: Any) -> dict[str, torch.Tensor]:
    sizes, pixels = torch.tensor([[20, 30], [32, 16]]), noise(2, 5, 3, 16, 16)
    with torch.no_grad():
        features = model.model.get_image_features(pixels, sizes).pooler_output
    ids = prompt(1, -len(features[0]), 5, 6, -len(features[1]), 9)
    return {"input_ids": ids, "pixel_values": pixels, "image_sizes": sizes}


def _sounds(_: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": prompt(1, -4, 5, 6, -4, 9), "input_features": noise(2, 8, 32)}


def _sounds_of_lengths(_: Any) -> dict[str, torch.Tensor]:
    mask = torch.ones(2, 32, dtype=torch.int64)
    mask[1, 20:] = 0
    return {
        "input_ids": prompt(1, -8, 5, 6, -5, 9),
        "input_features": noise(2, 8, 32),
        "feature_attention_mask": mask,
    }


def _model(kind: str, text: Any, parts: dict[str, Any], **settings: Any) -> Callable[[], Any]:
    """Return what builds a model by the names of its classes."""

    def make() -> Any:
        cls = getattr(hf, f"{kind}ForConditionalGeneration")
        token = "audio_token_id" if "audio_config" in parts else "image_token_id"
        config = getattr(hf, f"{kind}Config")(
            text_config=text, **parts, **{token: PLACEHOLDER}, **settings
        )
        return randomized(cls, config)

    return make


def _qwen(kind: str, vision: dict[str, Any], **text: Any) -> Callable[[], Any]:
    settings = {"video_token_id": 101, "vision_start_token_id": 102, "vision_end_token_id": 103}
    rope = {**SECTIONS, **text.pop("rope", {})}
    plain = {name: x for name, x in TEXT.items() if name != "head_dim"}
    words = {**plain, "rope_parameters": rope, **text}
    return _model(kind, words, {"vision_config": {**GRID, **vision}}, **settings)


_CLIP = {"vision_config": hf.CLIPVisionConfig(**VISION)}
_SIGLIP = {"vision_config": hf.SiglipVisionConfig(**VISION)}
_PLAIN = {"vision_config": VISION}
_PAIR = {"image_size": [16, 16], "patch_size": [4, 4]}
_INTERN = {"vision_config": hf.InternVLVisionConfig(**{**VISION, **_PAIR})}
_LAYERS = {"d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 32}
_QWEN2_AUDIO = {"audio_config": hf.Qwen2AudioEncoderConfig(**_LAYERS, **SOUND)}
_VOXTRAL_SIZES = {"hidden_size": 24, "intermediate_size": 96, "num_hidden_layers": 2}
_VOXTRAL = {
    "audio_config": hf.VoxtralEncoderConfig(**_VOXTRAL_SIZES, num_attention_heads=4, **SOUND)
}
_GEMMA3 = hf.Gemma3TextConfig(
    **TEXT, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
)
_PINPOINTS = [[16, 16], [16, 32], [32, 16], [32, 32]]
_TWO = (1, -4, 5, 6, -4, 9)

MEDIA_MODELS = (
    MediaModel("LLaVA", _model("Llava", hf.LlamaConfig(**TEXT), _CLIP), _pixels(1, -16, 5, -16, 9)),
    MediaModel(
        "Gemma 3",
        _model(
            "Gemma3", _GEMMA3, _SIGLIP, mm_tokens_per_image=4, boi_token_id=101, eoi_token_id=102
        ),
        _pixels(101, *_TWO[1:4], 101, *_TWO[4:], types="pictures"),
    ),
    MediaModel(
        "PaliGemma",
        _model("PaliGemma", hf.GemmaConfig(**TEXT), _SIGLIP, projection_dim=32),
        _pixels(-16, -16, 5, 6, 9, types="prefix"),
    ),
    MediaModel(
        "Idefics 3", _model("Idefics3", hf.LlamaConfig(**TEXT), _PLAIN, scale_factor=2), _tiles
    ),
    MediaModel(
        "SmolVLM", _model("SmolVLM", hf.LlamaConfig(**TEXT), _PLAIN, scale_factor=2), _tiles
    ),
    MediaModel("Qwen2-VL", _qwen("Qwen2VL", {"depth": 2, "embed_dim": 32, "mlp_ratio": 2}), _grids),
    MediaModel(
        "Qwen2.5-VL",
        _qwen(
            "Qwen2_5_VL",
            {"depth": 2, "out_hidden_size": 32, "window_size": 8, "fullatt_block_indexes": [1]},
        ),
        _grids,
    ),
    MediaModel(
        "Qwen3-VL",
        _qwen(
            "Qwen3VL",
            {
                "depth": 3,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0, 1],
            },
            rope={"mrope_interleaved": True},
            head_dim=8,
            num_hidden_layers=3,
        ),
        _grids,
    ),
    MediaModel(
        "InternVL",
        _model(
            "InternVL", hf.Qwen2Config(**TEXT), _INTERN, image_seq_length=4, downsample_ratio=0.5
        ),
        _pixels(*_TWO),
    ),
    MediaModel(
        "LLaVA-OneVision",
        _model(
            "LlavaOnevision",
            hf.Qwen2Config(**TEXT),
            _SIGLIP,
            video_token_id=101,
            image_grid_pinpoints=_PINPOINTS,
        ),
        _any_resolution,
    ),
    MediaModel(
        "Qwen2-Audio",
        _model("Qwen2Audio", hf.Qwen2Config(**TEXT), _QWEN2_AUDIO),
        _sounds_of_lengths,
    ),
    MediaModel("Voxtral", _model("Voxtral", hf.LlamaConfig(**TEXT), _VOXTRAL), _sounds),
)


def _from_pixels(*shape: int) -> Callable[[Any], dict[str, torch.Tensor]]:
    return lambda _: {"pixel_values": noise(*shape)}


def _git() -> Any:
    text = {name: x for name, x in TEXT.items() if "head_dim" not in name and "key" not in name}
    vision = {**VISION, "hidden_size": 24}
    return randomized(hf.GitForCausalLM, hf.GitConfig(vision_config=vision, **text))


def _phi() -> Any:
    vision = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3}
    vision |= {"num_attention_heads": 4, "image_size": 16, "crop_size": 16, "patch_size": 4}
    sound: dict[str, Any] = {
        "hidden_size": 24, "intermediate_size": 32, "num_blocks": 2, "num_attention_heads": 4,
        "ext_pw_out_channel": 24, "depthwise_separable_out_channel": 24, "input_size": 16,
        "nemo_conv_channels": 8, "bias_max_distance": 20,
    }  # fmt: skip
    text = {name: x for name, x in TEXT.items() if name != "head_dim"}
    config = hf.Phi4MultimodalConfig(
        vision_config={**vision, "image_token_id": PLACEHOLDER},
        audio_config={**sound, "audio_token_id": SOUND_PLACEHOLDER},
        **text,
    )
    return randomized(hf.Phi4MultimodalForCausalLM, config)


def _phi_inputs(_: Any) -> dict[str, torch.Tensor]:
    """A picture of two tiles, the second of which is half full, and two sounds."""
    mask = torch.ones(1, 3, 4, 4, dtype=torch.int64)
    mask[0, 2, :, 2:] = 0
    # Rows of a picture end with a feature, and a picture with one: 2 * (3 + 1) + 1 + 2 * (2 + 1).
    ids = prompt(5, -15, 6, *[SOUND_PLACEHOLDER] * 8, 9)
    heard = torch.ones(2, 40, dtype=torch.int64)
    heard[1, 24:] = 0
    return {
        "input_ids": ids,
        "image_pixel_values": noise(1, 3, 3, 16, 16),
        "image_sizes": torch.tensor([[16, 32]]),
        "image_attention_mask": mask,
        "audio_input_features": noise(2, 40, 16),
        "audio_embed_sizes": torch.tensor([5, 3]),
        "audio_attention_mask": heard == 1,
    }


def _captioned(_: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": prompt(1, 5, 9), "pixel_values": noise(1, 3, 16, 16)}


def _encoder_decoder(encoder: Any, decoder: Any) -> Callable[[], Any]:
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, decoder, decoder_start_token_id=2, pad_token_id=1, eos_token_id=98
    )
    return lambda: randomized(hf.VisionEncoderDecoderModel, config)


def _florence() -> Any:
    stages = {"patch_size": [7, 3], "patch_stride": [8, 8], "patch_padding": [3, 1]}
    stages |= {"depths": [1, 1], "embed_dim": [8, 16], "num_heads": [2, 2], "num_groups": [2, 2]}
    text: dict[str, Any] = {
        "vocab_size": 120, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "decoder_start_token_id": 2, "eos_token_id": 98,
        "pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 256,
    }  # fmt: skip
    config = hf.Florence2Config(
        vision_config={**stages, "patch_prenorm": [False, True], "projection_dim": 16},
        text_config={"model_type": "bart", **text},
        image_token_id=PLACEHOLDER,
    )
    return randomized(hf.Florence2ForConditionalGeneration, config)


def _document(_: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": prompt(-145, 5, 6, 9), "pixel_values": noise(1, 3, 768, 768)}


def _blip() -> Any:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    text = {**sizes, "hidden_size": 24, "encoder_hidden_size": 24, "vocab_size": 99}
    tokens = {"bos_token_id": 2, "sep_token_id": 98, "eos_token_id": 98, "pad_token_id": 0}
    config = hf.BlipConfig(
        text_config={**text, **tokens, "max_position_embeddings": 64}, vision_config=VISION,
    )  # fmt: skip
    return randomized(hf.BlipForConditionalGeneration, config)


_DECODER: dict[str, Any] = {
    "vocab_size": 99, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 32,
    "max_position_embeddings": 128, "is_decoder": True, "add_cross_attention": True,
}  # fmt: skip
PICTURE_READERS = (
    MediaModel("Phi-4-multimodal", _phi, _phi_inputs, "any-to-any"),
    MediaModel("GIT", _git, _captioned, "image-text-to-text"),
    MediaModel("Florence-2", _florence, _document),
    MediaModel("BLIP", _blip, _from_pixels(2, 3, 16, 16)),
    MediaModel(
        "TrOCR",
        _encoder_decoder(
            hf.ViTConfig(**VISION),
            hf.TrOCRConfig(**_DECODER, d_model=24, cross_attention_hidden_size=24),
        ),
        _from_pixels(2, 3, 16, 16),
    ),
    MediaModel(
        "Donut",
        _encoder_decoder(
            hf.DonutSwinConfig(
                embed_dim=8, depths=[1, 1], num_heads=[2, 2], image_size=[16, 24], patch_size=2,
                window_size=2,
            ),
            hf.MBartConfig(**_DECODER, d_model=16),
        ),
        _from_pixels(2, 3, 16, 24),
    ),
)  # fmt: skip
