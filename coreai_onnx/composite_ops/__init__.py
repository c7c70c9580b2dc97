"""The composite ops: what each one is, and the modules a user writes with them."""

from coreai_onnx.composite_ops import (
    gated_delta_update,
    gather_mm,
    geglu,
    group_norm,
    kv_cache_update,
    layer_norm,
    rms_norm,
    rope,
    sdpa,
    skip_layer_norm,
    skip_rms_norm,
    swiglu,
)
from coreai_onnx.composite_ops.declaration import Composite
from coreai_onnx.composite_ops.modules import SDPA, RMSNorm, RMSNormImpl, RoPE

COMPOSITES: dict[str, Composite] = {
    module.COMPOSITE.name: module.COMPOSITE
    for module in (
        sdpa,
        kv_cache_update,
        rope,
        gated_delta_update,
        gather_mm,
        swiglu,
        geglu,
        rms_norm,
        skip_rms_norm,
        layer_norm,
        skip_layer_norm,
        group_norm,
    )
}
"""Every standard composite by name."""

__all__ = ["COMPOSITES", "SDPA", "Composite", "RMSNorm", "RMSNormImpl", "RoPE"]
