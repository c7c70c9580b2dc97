"""The body of ``pixel_shuffle``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.trace import Example
from coreai_onnx.bodies.writers import Examples, present, writes
from coreai_onnx.composites.declaration import Composite
from coreai_onnx.lower.build.scope import AttributeRef
from coreai_onnx.lower.build.values import Value

_BLOCK = AttributeRef("upscale_factor", "int")


def _words(composite: Composite, examples: Examples, attributes: Mapping[str, Any]) -> list[str]:
    del attributes
    return [] if len(present(composite, examples)["input"].dims) == 4 else ["any_rank"]


@writes("pixel_shuffle", words=_words)
def write(
    b: BodyBuilder, examples: Sequence[Example | None], attributes: Mapping[str, Any]
) -> Value:
    """DepthToSpace on four axes; the axes before the channels are merged into one."""
    del attributes
    op, x = b.op, b.inputs[0]
    wide = op.cast(x, torch.float32) if b.dtype.itemsize < 4 else x
    first = examples[0]
    assert first is not None
    if len(first.dims) == 4:
        return op.cast(op.DepthToSpace(wide, blocksize=_BLOCK, mode="CRD"), b.dtype)
    lead, tail = op.Shape(x, end=-3), op.Shape(x, start=-3)
    # the product of no sizes is one; ReduceProd returns nothing for it
    samples = op.ReduceProd(op.Concat(lead, op.const([1]), axis=0), keepdims=1)
    merged = op.Reshape(wide, op.Concat(samples, tail, axis=0), allowzero=1)
    moved = op.DepthToSpace(merged, blocksize=_BLOCK, mode="CRD")
    dims = op.Concat(lead, op.Shape(moved, start=1), axis=0)
    return op.cast(op.Reshape(moved, dims, allowzero=1), b.dtype)
