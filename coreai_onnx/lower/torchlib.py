"""The long tail: onnxscript's torchlib, behind one adapter."""

from __future__ import annotations

import torch

from coreai_onnx.lower.registry import Lowering


def lowering(target: torch._ops.OpOverload) -> Lowering | None:
    """Return torchlib's function for an op as a lowering, or None."""
    del target
    return None
