"""Hashes of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.aten.loops.scanning import final_state
from coreai_onnx.lower.aten.pointwise.float_bits import bits_of
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Value,
    dims_of,
    is_float,
    numel,
    rank_of,
    set_dims,
    wrap_all,
)
from coreai_onnx.lower.walk.registry import lowers


@lowers("aten.hash_tensor.default")
def hash_tensor(
    op: OpBuilder, self: Value, dim: Sequence[int] = (), *, keepdim: bool = False
) -> Value:
    """The exclusive or of the elements over axes, as int64 or as float64 bits."""
    dims, axes = dims_of(self), wrap_all(dim, rank_of(self))
    kept = [a for a in range(len(dims)) if a not in axes]
    bits = bits_of(op, op.cast(self, torch.float64)) if is_float(self) else self
    turned = op.transpose(op.cast(bits, torch.int64), [*axes, *kept])
    sizes = tuple(dims[a] for a in kept)
    rows = op.reshape(turned, [numel([dims[a] for a in axes]), *sizes])
    start = set_dims(op.expand(op.const(0), list(sizes)), sizes)

    # ONNX has no reduction by exclusive or.
    def step(op: OpBuilder, state: list[Value], part: list[Value]) -> list[Value]:
        return [set_dims(op.BitwiseXor(state[0], part[0]), sizes)]

    (result,) = final_state(op, [rows], 0, [start], step)
    return op.unsqueeze(op.cast(result, torch.uint64), axes) if keepdim and dims else result
