"""Lowerings of torch ops, one file per family; importing this package registers them."""

from coreai_onnx.lower.aten import (
    activation,
    arithmetic,
    comparison,
    composite_calls,
    conversion,
    convolution,
    error_function,
    indexing,
    logic,
    masking,
    matmul,
    powers,
    softmax,
    trigonometry,
    unary_math,
)

__all__ = [
    "activation",
    "arithmetic",
    "comparison",
    "composite_calls",
    "conversion",
    "convolution",
    "error_function",
    "indexing",
    "logic",
    "masking",
    "matmul",
    "powers",
    "softmax",
    "trigonometry",
    "unary_math",
]
