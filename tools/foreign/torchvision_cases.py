"""Image and video models of torchvision; those that need its C++ operators are not among them."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tools.foreign.case import Case, Inputs, Size, image, imported

CLASSES = 10
_ANY_SIDE = """
    densenet121 efficientnet_b0 mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_y_400mf resnet18
    shufflenet_v2_x0_5 squeezenet1_1 convnext_tiny
""".split()
_FIXED_SIDE = {"swin_t": 64, "swin_v2_t": 64, "maxvit_t": 224}


def _make(name: str, given: dict[str, Any]) -> torch.nn.Module:
    made: torch.nn.Module = imported("torchvision.models.get_model")(name, weights=None, **given)
    return made


def _vit() -> torch.nn.Module:
    made: torch.nn.Module = imported("torchvision.models.VisionTransformer")(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64
    )
    return made


def _video(size: Size) -> Inputs:
    return {"x": torch.randn(size.batch, 3, 4, 32, 32)}


def _case(name: str, inputs: Any, **given: Any) -> Case:
    make = functools.partial(_make, name, given)
    return Case(f"torchvision/{name}", "torchvision", make, inputs)


TORCHVISION = (
    *(
        _case(
            n, image(), num_classes=CLASSES, **({"init_weights": False} if n == "googlenet" else {})
        )
        for n in _ANY_SIDE
    ),
    _case("lraspp_mobilenet_v3_large", image("input"), weights_backbone=None),
    _case("deeplabv3_mobilenet_v3_large", image(), weights_backbone=None),
    *(_case(n, image(side=side), num_classes=CLASSES) for n, side in _FIXED_SIDE.items()),
    _case("r3d_18", _video, num_classes=CLASSES),
    Case("torchvision/VisionTransformer", "torchvision", _vit, image(side=32)),
)
"""Every case, in the order of the sweep."""
