"""Models of images, and of images and text together."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch.export import Dim

from tests.models.architecture import (
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    Architecture,
    Inputs,
    batch_dims,
    ids_and_mask,
    images,
)

_VISION: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class ResidualBlock(torch.nn.Module):
    """Two convolutions with batch norms and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.first_norm = torch.nn.BatchNorm2d(outer)
        self.second = torch.nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.second_norm = torch.nn.BatchNorm2d(outer)
        self.shortcut = torch.nn.Conv2d(inner, outer, 1, stride, bias=False)
        self.relu = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return self.relu(y + self.shortcut(x))


class ResNet(torch.nn.Module):
    """A small residual network on images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.relu = torch.nn.ReLU(inplace=True)
        self.pool = torch.nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = torch.nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2))
        self.average = torch.nn.AdaptiveAvgPool2d(1)
        self.classify = torch.nn.Linear(16, 10)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pool(self.relu(self.norm(self.stem(pixel_values)))))
        return self.classify(torch.flatten(self.average(x), 1))


def _vit() -> torch.nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**_VISION))


def _dinov2() -> torch.nn.Module:
    shape = {n: v for n, v in _VISION.items() if n != "intermediate_size"}
    return transformers.Dinov2Model(transformers.Dinov2Config(**shape))


def _swin() -> torch.nn.Module:
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return transformers.SwinForImageClassification(config)


def _convnext() -> torch.nn.Module:
    config = transformers.ConvNextConfig(
        image_size=32, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]
    )
    return transformers.ConvNextForImageClassification(config)


def _segformer() -> torch.nn.Module:
    config = transformers.SegformerConfig(
        num_encoder_blocks=2,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_attention_heads=[1, 2],
        sr_ratios=[4, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[4, 4],
        decoder_hidden_size=16,
        num_labels=5,
    )
    return transformers.SegformerForSemanticSegmentation(config)


def _detr() -> torch.nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_queries=7,
        num_labels=5,
    )
    return transformers.DetrForObjectDetection(config)


def _clip() -> torch.nn.Module:
    config = transformers.CLIPConfig(text_config=_TEXT, vision_config=_VISION, projection_dim=24)
    return transformers.CLIPModel(config)


def _siglip() -> torch.nn.Module:
    return transformers.SiglipModel(
        transformers.SiglipConfig(text_config=_TEXT, vision_config=_VISION)
    )


def _images_of_any_size(batch: int, length: int) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, 64 + 8 * length, 64 + 4 * length)}


def _image_size_dims() -> dict[str, Any]:
    height, width = Dim("height", min=64, max=512), Dim("width", min=64, max=512)
    return {"pixel_values": {0: Dim("batch"), 2: height, 3: width}}


def _images_and_texts(batch: int, length: int) -> Inputs:
    return {**ids_and_mask(batch + 1, length), **images(batch, length)}


def _pair_dims() -> dict[str, Any]:
    text = {0: Dim("texts"), 1: Dim("seq", max=64)}
    return {"input_ids": text, "attention_mask": text, "pixel_values": {0: Dim("images")}}


_ONE_SIZE = "the model takes one image size"
_GROWING = ((2, 3), (1, 0), (3, 5))

VISION = (
    Architecture("resnet", ResNet, _images_of_any_size, _image_size_dims(), _GROWING),
    Architecture("vit", _vit, images, batch_dims(), note=_ONE_SIZE),
    Architecture("dinov2", _dinov2, _images_of_any_size, _image_size_dims(), _GROWING),
    Architecture(
        "swin",
        _swin,
        images,
        batch_dims(),
        note="windows are laid out in Python for one image size",
    ),
    Architecture("convnext", _convnext, _images_of_any_size, _image_size_dims(), _GROWING),
    Architecture("segformer", _segformer, _images_of_any_size, _image_size_dims(), _GROWING),
    Architecture("detr", _detr, _images_of_any_size, _image_size_dims(), _GROWING),
    Architecture("clip", _clip, _images_and_texts, _pair_dims(), note=_ONE_SIZE),
    Architecture("siglip", _siglip, _images_and_texts, _pair_dims(), note=_ONE_SIZE),
)
