"""The composite ops: what each one is, and the modules a user writes with them."""

from coreai_onnx.composite_ops import layer_norm, rms_norm, rope, sdpa
from coreai_onnx.composite_ops.declaration import Composite
from coreai_onnx.composite_ops.modules import SDPA, RMSNorm, RMSNormImpl, RoPE

COMPOSITES: dict[str, Composite] = {
    module.COMPOSITE.name: module.COMPOSITE for module in (sdpa, layer_norm, rms_norm, rope)
}
"""Every standard composite by name."""

__all__ = ["COMPOSITES", "SDPA", "Composite", "RMSNorm", "RMSNormImpl", "RoPE"]
