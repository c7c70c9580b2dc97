"""The composite ops: their declarations, and the modules that compute them."""

from coreai_onnx.composites import (
    add_bias,
    avg_pool_2d,
    avg_pool_3d,
    batch_norm,
    blockwise_shift_scale,
    embedding_nbits,
    gated_delta_update,
    gather_mm,
    gather_mm_nbits,
    geglu,
    gelu,
    group_norm,
    hard_sigmoid,
    hard_swish,
    instance_norm,
    kv_cache_update,
    layer_norm,
    linalg_vector_norm,
    linear_nbits,
    log_softmax,
    lut_to_dense,
    pixel_shuffle,
    rms_norm,
    rope,
    sdpa,
    silu,
    skip_layer_norm,
    skip_rms_norm,
    sparse_to_dense,
    swiglu,
)
from coreai_onnx.composites.activation_modules import (
    ActivationDequantizeModule,
    ActivationQuantizeModule,
)
from coreai_onnx.composites.compressed_modules import (
    PalettizeModule,
    ScaledPalettizeModule,
    SparseModule,
    WeightDequantizeModule,
)
from coreai_onnx.composites.declaration import (
    DOMAIN,
    USER_DOMAIN,
    Attribute,
    Composite,
    Input,
)
from coreai_onnx.composites.gated_delta_module import GatedDeltaUpdate
from coreai_onnx.composites.gather_mm_module import GatherMM
from coreai_onnx.composites.modules import SDPA, RMSNorm, RMSNormImpl, RoPE
from coreai_onnx.errors import DeclarationError

COMPOSITES: dict[str, Composite] = {
    module.COMPOSITE.name: module.COMPOSITE
    for module in (
        sdpa,
        kv_cache_update,
        rope,
        gated_delta_update,
        gather_mm,
        linear_nbits,
        gather_mm_nbits,
        embedding_nbits,
        lut_to_dense,
        sparse_to_dense,
        blockwise_shift_scale,
        swiglu,
        geglu,
        add_bias,
        rms_norm,
        skip_rms_norm,
        layer_norm,
        skip_layer_norm,
        group_norm,
        instance_norm,
        batch_norm,
        linalg_vector_norm,
        gelu,
        silu,
        hard_sigmoid,
        hard_swish,
        log_softmax,
        avg_pool_2d,
        avg_pool_3d,
        pixel_shuffle,
    )
}
"""The standard composites by name."""
TORCH_OPS: dict[str, Composite] = {op: c for c in COMPOSITES.values() for op in c.aten}
"""The composites by the torch ops that they are."""

__all__ = [
    "COMPOSITES",
    "SDPA",
    "ActivationDequantizeModule",
    "ActivationQuantizeModule",
    "Attribute",
    "Composite",
    "GatedDeltaUpdate",
    "GatherMM",
    "Input",
    "PalettizeModule",
    "RMSNorm",
    "RMSNormImpl",
    "RoPE",
    "ScaledPalettizeModule",
    "SparseModule",
    "WeightDequantizeModule",
    "domain_of",
]


def domain_of(composite: Composite) -> str:
    """Return the domain of a composite: ``ai.coreai``, or ``ai.coreai.user`` for a user's own.

    Raises:
        DeclarationError: If a user's composite has the name of a standard one.
    """
    standard = COMPOSITES.get(composite.name)
    if standard is not None and standard is not composite:
        raise DeclarationError(
            f"{composite.name!r} is the name of a standard composite; choose another one"
        )
    return USER_DOMAIN if standard is None else DOMAIN
