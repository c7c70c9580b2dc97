"""torchvision without its C++ operators, of which there is no CPU build for this torch."""

from __future__ import annotations

import torch

_KEPT: list[torch.library.Library] = []


def declare_torchvision_ops() -> None:
    """Declare the two operators that torchvision needs when it is imported; nothing runs them."""
    if _KEPT:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)
