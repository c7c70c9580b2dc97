"""Image models of timm: of each of its modules one that is small, or made so."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tools.foreign.case import Case, image, imported

CLASSES = 10
_ANY_SIDE = """
    test_byobnet cpubone_nano csatv2 cs3darknet_s cspnext_tiny davit_tiny densenet121
    dla46_c dpn48b edgenext_xx_small test_efficientnet test_efficientnet_gn efficientvim_m1
    efficientvit_b0 fasternet_t0 fastvit_t8 focalnet_tiny_srf ghostnet_050 hardcorenas_b
    hgnetv2_b0 iformer_t inception_next_atto lcnetv2_small test_convnext test_mambaout
    poolformer_s12 mobilenetv3_small_050 mobilevit_xxs mobilevitv2_050 test_nfnet pvt_v2_b0
    regnetx_004_tv repghostnet_050 repvit_m1 resnet18 test_resnet resnetv2_18 rexnetr_100
    selecsls42 legacy_seresnet18 shvit_s1 skresnet18 starnet_s050 swiftformer_xs
    tresnet_m vgg11 ese_vovnet19b_slim xception41
""".split()
_FIXED_SIDE: dict[str, int] = {
    "halonet_h1": 256,
    "cait_xxs24_224": 64,
    "coat_tiny": 64,
    "convit_tiny": 64,
    "deit_tiny_distilled_patch16_224": 64,
    "efficientformerv2_s0": 64,
    "efficientvit_m0": 64,
    "gmlp_ti16_224": 64,
    "levit_128": 64,
    "pit_ti_224": 64,
    "vit_tiny_patch16_dinov3_qkvb": 64,
    "test_vit": 160,
    "test_coatnet": 160,
    "tiny_vit_5m_224": 224,
    "swin_tiny_patch4_window7_224": 224,
    "xcit_nano_12_p16_224": 64,
    "crossvit_tiny_240": 240,
    "visformer_tiny": 224,
    "tnt_s_legacy_patch16_224": 64,
    "twins_svt_small": 64,
    "sequencer2d_s": 224,
    "volo_d1_224": 224,
    "gcvit_xxtiny": 224,
    "vitamin_small_224": 64,
}
"""Name to the side of the images that a model is built for."""


def _make(name: str, **given: Any) -> torch.nn.Module:
    made: torch.nn.Module = imported("timm.create_model")(name, num_classes=CLASSES, **given)
    return made


def _fixed(name: str, side: int) -> Case:
    own = {"img_size": side} if side == 64 else {}
    make = functools.partial(_make, name, **own)
    return Case(f"timm/{name}", "timm", make, image(side=side))


TIMM = (
    *(Case(f"timm/{n}", "timm", functools.partial(_make, n), image()) for n in _ANY_SIDE),
    *(_fixed(name, side) for name, side in _FIXED_SIDE.items()),
)
"""Every case, in the order of the sweep."""
