"""Bodies written with ONNX nodes instead of traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from coreai_onnx.composite_ops.declaration import Composite
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
from coreai_onnx.functions.body import BodyBuilder
from coreai_onnx.functions.trace import Example
from coreai_onnx.lower.values import Value

Examples = Sequence[Example | None]
Writer = Callable[[BodyBuilder, Examples, Mapping[str, Any]], Value | Sequence[Value]]

_WRITERS: dict[str, Writer] = {
    "scaled_dot_product_attention": attention.write,
    "rope": rotary.write,
    "layer_norm": norms.layer_norm,
    "rms_norm": norms.rms_norm,
    "group_norm": norms.group_norm,
    "skip_layer_norm": skip_norms.skip_layer_norm,
    "skip_rms_norm": skip_norms.skip_rms_norm,
    "gather_mm": gather_mm.write,
    "gated_delta_update": gated_delta.write,
    "kv_cache_update": kv_cache.write,
    "swiglu": gated_activations.swiglu,
    "geglu": gated_activations.geglu,
    "instance_norm": norms.instance_norm,
    "batch_norm": norms.batch_norm,
    "linalg_vector_norm": vector_norm.write,
    "gelu": elements.gelu,
    "silu": elements.silu,
    "hard_sigmoid": elements.hard_sigmoid,
    "hard_swish": elements.hard_swish,
    "log_softmax": elements.log_softmax,
    "avg_pool_2d": pooling.write,
    "avg_pool_3d": pooling.write,
    "pixel_shuffle": pixel_shuffle.write,
}
"""What writes the body of a composite; the reference of any other one is traced."""


def body(
    composite: Composite,
    examples: Examples,
    attributes: Mapping[str, Any],
    opset: int,
) -> ir.Function | None:
    """Return a written body, or None where the reference is traced.

    Args:
        composite: The declaration.
        examples: One per input, None for an absent one.
        attributes: Structural attributes.
        opset: ``ai.onnx`` opset of the body.
    """
    writer = _WRITERS.get(composite.name)
    if writer is None:
        return None
    builder = BodyBuilder(composite, [e is not None for e in examples], opset)
    builder.type_inputs([None if e is None else e.dtype for e in examples])
    written = writer(builder, examples, attributes)
    return builder.finish([written] if isinstance(written, ir.Value) else written)
