"""Lowerings of torch ops, one file per family; importing this package registers them."""

from coreai_onnx.lower.aten import (
    arithmetic,
    composite_calls,
    convolution,
    indexing,
    masking,
    matmul,
)

__all__ = [
    "arithmetic",
    "composite_calls",
    "convolution",
    "indexing",
    "masking",
    "matmul",
]
