"""Exact int64 sums and products with wraparound.

onnxruntime's ReduceSum and ReduceProd go through float64 and saturate, so that sums beyond 2**53
(for example hashes of tokens) are wrong. Its MatMul and Mul compute in int64 itself.
"""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.loops.scanning import final_state
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, numel, set_dims, wrap_all


def exact_sum(op: OpBuilder, x: Value, axes: object, *, keepdim: bool) -> Value:
    """Return the sum over axes, computed as a product with a vector of ones."""
    rank = len(dims_of(x))
    if rank == 0:
        return x
    over = wrap_all(axes, rank)  # type: ignore[arg-type]  # axes as torch gives them
    rows, count = _merged_last(op, x, over)
    if isinstance(count, int):
        ones = op.const([1] * count, torch.int64)
    else:
        ones = op.expand(op.const([1]), [count])
    total = set_dims(op.MatMul(rows, ones), dims_of(rows)[:-1])
    return op.unsqueeze(total, over) if keepdim else total


def exact_product(op: OpBuilder, x: Value, axes: object, *, keepdim: bool) -> Value:
    """Return the product over axes, computed by one multiplication after another."""
    dims = dims_of(x)
    over = wrap_all(axes, len(dims))  # type: ignore[arg-type]  # axes as torch gives them
    rows, _ = _merged_last(op, x, over)
    rest = dims_of(rows)[:-1]
    ones = op.expand(op.const(1), rest)
    (product,) = final_state(
        op, [rows], len(rest), [ones], lambda o, state, given: [o.Mul(state[0], given[0])]
    )
    return op.unsqueeze(product, over) if keepdim else product


def _merged_last(op: OpBuilder, x: Value, over: list[int]) -> tuple[Value, Dim]:
    """Return ``x`` with the axes to reduce as one last axis, and its size."""
    dims = dims_of(x)
    rest = [i for i in range(len(dims)) if i not in over]
    count = numel([dims[i] for i in over])
    turned = op.transpose(x, [*rest, *over])
    return op.reshape(turned, [*(dims[i] for i in rest), count]), count
