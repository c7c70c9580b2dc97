"""The composite ops: their declarations, and the modules that compute them."""

from coreai_onnx.composites import (
    activations,
    attention,
    caches,
    channel_norms,
    compressed_weights,
    few_bits,
    gated_delta,
    norms,
    pooling,
    products,
    rotary,
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
from coreai_onnx.composites.modules import (
    SDPA,
    GatedDeltaUpdate,
    GatherMM,
    RMSNorm,
    RMSNormImpl,
    RoPE,
)
from coreai_onnx.errors import DeclarationError

_FAMILIES = (
    attention,
    caches,
    rotary,
    gated_delta,
    products,
    few_bits,
    compressed_weights,
    activations,
    norms,
    channel_norms,
    pooling,
)
# Families import functions of each other, never declarations, so each is found once.
COMPOSITES: dict[str, Composite] = {
    declared.name: declared
    for family in _FAMILIES
    for declared in vars(family).values()
    if isinstance(declared, Composite)
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
