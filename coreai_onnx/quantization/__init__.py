"""Quantization of the weights of finished models, with and without calibration data.

``OrtQuantizer`` quantizes exported programs with torchao's PT2E; it is imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coreai_onnx.quantization.activations.ort_quantizer import OrtQuantizer

__all__ = ["OrtQuantizer"]


def __getattr__(name: str) -> Any:
    """Import the quantizer, which needs torchao."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coreai_onnx.quantization.activations.ort_quantizer import OrtQuantizer

    return OrtQuantizer
