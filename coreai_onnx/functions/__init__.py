"""From composite calls and externalised modules to ONNX functions.

Importing the package registers the writers of bodies.
"""

from coreai_onnx.functions import (
    attention,
    elements,
    gated_activations,
    gated_delta,
    gather_mm,
    kv_cache,
    norms,
    pixel_shuffle,
    pooling,
    rotary,
    skip_norms,
    vector_norm,
)
from coreai_onnx.functions.library import composite_functions
from coreai_onnx.functions.modules import ModuleCalls

__all__ = [
    "ModuleCalls",
    "attention",
    "composite_functions",
    "elements",
    "gated_activations",
    "gated_delta",
    "gather_mm",
    "kv_cache",
    "norms",
    "pixel_shuffle",
    "pooling",
    "rotary",
    "skip_norms",
    "vector_norm",
]
