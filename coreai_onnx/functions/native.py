"""Bodies written with ONNX nodes instead of traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from coreai_onnx.composite_ops.declaration import Composite
from coreai_onnx.functions import attention, norms
from coreai_onnx.functions.body import BodyBuilder
from coreai_onnx.functions.trace import Example
from coreai_onnx.lower.values import Value

Examples = Sequence[Example | None]
Writer = Callable[[BodyBuilder, Examples, Mapping[str, Any]], Value | Sequence[Value]]

_WRITERS: dict[str, Writer] = {
    "scaled_dot_product_attention": attention.write,
    "layer_norm": norms.layer_norm,
    "rms_norm": norms.rms_norm,
    "group_norm": norms.group_norm,
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
