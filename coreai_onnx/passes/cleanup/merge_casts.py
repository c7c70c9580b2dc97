"""Merges consecutive casts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import cast_to, dtype_of, made_by
from coreai_onnx.passes.engine.why import Why

_BITS = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
"""Bits of significand and exponent."""


@rewrites("Cast")
def merge_casts(_: Edit, node: gs.Node, why: Why) -> bool:
    """Cast of a Cast that loses nothing → Cast of its input.

    x:f16 ─Cast→ f32 ─Cast→ bf16     becomes     x:f16 ─Cast→ bf16
    """
    inner = made_by(node.inputs[0], "Cast")
    between, last = cast_to(inner), cast_to(node)
    if inner is None or between is None or last is None:
        return False
    source = dtype_of(inner.inputs[0])
    if source is None:
        return why("a dtype is not known", node)
    if not _keeps(source, ir.DataType(between).numpy(), ir.DataType(last).numpy()):
        return why("the cast between may lose something", node)
    set_input(node, 0, inner.inputs[0])
    return True


def _keeps(source: np.dtype, between: np.dtype, last: np.dtype) -> bool:
    """Whether a direct cast from ``source`` to ``last`` gives the same values."""
    if source == between:
        return True
    if source == np.bool_:
        return between.kind in "iu" or between.name in _BITS
    if source.kind in "iu":
        if between.kind in "iu":
            # A narrower integer in between would wrap around, which a direct cast does not do.
            return bool(np.can_cast(source, between)) and last.name in {*_BITS, source.name}
        # onnxruntime converts integers to narrow floats through float32, rounding twice
        exact = between.name in _BITS and _BITS[between.name][0] >= 8 * source.itemsize
        return exact and last.name not in ("float16", "bfloat16", "bool")
    if source.name not in _BITS or between.name not in _BITS:
        return False
    return all(a <= b for a, b in zip(_BITS[source.name], _BITS[between.name], strict=True))
