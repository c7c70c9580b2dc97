"""Matrix products: of vectors, matrices and batches, with and without an addend."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import as_value, promote
from coreai_onnx.lower.nodes.values import (
    Number,
    Value,
    dims_of,
    dtype_of,
    is_bool,
    is_float,
    rank_of,
)
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- plain products
# Whole, because its decomposition for three axes is an addmm between two views.
@lowers("aten.linear.default", whole=True)
def linear(op: OpBuilder, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input @ weightᵀ + bias."""
    # A vector of weights has no axis of outputs, and cannot be transposed.
    if rank_of(weight) == 1:
        return _plus(op, op.MatMul(input, weight), bias)
    if rank_of(input) == 2 and _fits_gemm(input, weight):
        return op.Gemm(input, weight, bias, transB=1)
    return _plus(op, op.MatMul(input, op.transpose(weight, [1, 0])), bias)


@lowers("aten._int_mm.default")
def int_mm(op: OpBuilder, self: Value, mat2: Value) -> Value:
    """self @ mat2 of int8 or uint8 matrices, in int32.

    int8 is shifted to uint8: onnxruntime's product of int8 by int8 is ten times slower, and that of
    uint8 by int8 saturates on x86 without VNNI.
    """
    operands, zero_points = [], []
    for matrix in (self, mat2):
        # torchao passes uint8 on CPUs with VNNI.
        zero = op.const(0 if dtype_of(matrix) == torch.uint8 else 128, torch.uint8)
        shifted = op.cast(matrix, torch.uint8)
        operands.append(shifted if shifted is matrix else op.BitwiseXor(shifted, zero))
        zero_points.append(zero)
    return op.MatMulInteger(*operands, *zero_points)


@lowers("aten.mm.default", "aten.bmm.default", renamed={"other": "mat2"})
@lowers("aten.mm.dtype", "aten.bmm.dtype", renamed={"other": "mat2"})
@lowers("aten.mv.default", renamed={"other": "vec"})
@lowers("aten.dot.default", renamed={"other": "tensor"})
@lowers("aten._sparse_mm.default", renamed={"self": "sparse", "other": "dense"})
@lowers("aten.matmul.default", "aten.vdot.default")
def matmul(op: OpBuilder, self: Value, other: Value, out_dtype: torch.dtype | None = None) -> Value:
    """self @ other for any ranks, in ``out_dtype`` if given; integers wrap around as in torch."""
    if out_dtype is not None:
        self, other = op.cast(self, out_dtype), op.cast(other, out_dtype)
    return op.MatMul(self, other)


@lowers("aten.outer.default", "aten.ger.default")
def outer(op: OpBuilder, self: Value, vec2: Value) -> Value:
    """self[:, None] * vec2."""
    left, right = promote(op, self, vec2)
    return _times(op, op.unsqueeze(left, [1]), right)


@lowers("aten.chain_matmul.default")
def chain_matmul(op: OpBuilder, matrices: Sequence[Value]) -> Value:
    """matrices[0] @ matrices[1] @ …, from the left."""
    result = matrices[0]
    for matrix in matrices[1:]:
        result = op.MatMul(result, matrix)
    return result


@lowers("aten._trilinear.default")
def trilinear(
    op: OpBuilder,
    i1: Value,
    i2: Value,
    i3: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
) -> Value:
    """Σ over ``sumdim`` of the product of three tensors with axes of size 1 put in."""
    pairs = ((i1, expand1), (i2, expand2), (i3, expand3))
    first, second, third = (op.unsqueeze(x, list(axes)) for x, axes in pairs)
    return op.ReduceSum(op.Mul(op.Mul(first, second), third), sorted(sumdim), keepdims=0)


# ---------------------------------------------------------------------- products with an addend
@lowers("aten.addmm.default", "aten.addmm.dtype")
def addmm(
    op: OpBuilder,
    self: Value,
    mat1: Value,
    mat2: Value,
    out_dtype: torch.dtype | None = None,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> Value:
    """beta * self + alpha * (mat1 @ mat2), in ``out_dtype`` if given."""
    if out_dtype is not None:
        self, mat1, mat2 = (op.cast(x, out_dtype) for x in (self, mat1, mat2))
    if _fits_gemm(mat1, mat2) and isinstance(alpha, int | float) and isinstance(beta, int | float):
        # As in torch, beta = 0 ignores self even where it is NaN.
        addend = None if beta == 0 else self
        return op.Gemm(
            mat1, mat2, addend, alpha=float(alpha), beta=float(beta) if addend is not None else None
        )
    return _weighted(op, self, op.MatMul(mat1, mat2), beta, alpha)


@lowers("aten.baddbmm.default", "aten.baddbmm.dtype")
def baddbmm(
    op: OpBuilder,
    self: Value,
    batch1: Value,
    batch2: Value,
    out_dtype: torch.dtype | None = None,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> Value:
    """beta * self + alpha * (batch1 @ batch2), in ``out_dtype``, or float32 for narrow floats."""
    if out_dtype is not None:
        self, batch1, batch2 = (op.cast(x, out_dtype) for x in (self, batch1, batch2))
    addend, left, right = _wide(op, self, batch1, batch2)
    return _weighted(op, addend, op.MatMul(left, right), beta, alpha)


@lowers("aten.addbmm.default")
def addbmm(
    op: OpBuilder, self: Value, batch1: Value, batch2: Value, *, beta: Number = 1, alpha: Number = 1
) -> Value:
    """beta * self + alpha * Σ over the batch of (batch1 @ batch2), in float32 for narrow floats."""
    addend, left, right = _wide(op, self, batch1, batch2)
    total = op.ReduceSum(op.MatMul(left, right), [0], keepdims=0)
    return _weighted(op, addend, total, beta, alpha)


def _wide(op: OpBuilder, *operands: Value) -> Sequence[Value]:
    """Return operands of 16-bit floats in float32, so that sums are rounded once."""
    if dtype_of(operands[0]) not in (torch.float16, torch.bfloat16):
        return operands
    return [op.cast(x, torch.float32) for x in operands]


# ---------------------------------------------------------------------- parts
def _fits_gemm(a: Value, b: Value) -> bool:
    """Whether Gemm is exact for these operands: floating-point, with a nonempty inner dimension."""
    return is_float(a) and a.dtype == b.dtype and dims_of(a)[-1] != 0


def _plus(op: OpBuilder, x: Value, addend: Value | None) -> Value:
    """Return x + addend; an empty product is returned as is, since onnxruntime's fusion fails."""
    if addend is None or 0 in dims_of(x):
        return x
    return op.Add(x, op.cast(addend, dtype_of(x)))


def _times(op: OpBuilder, x: Value, y: Value) -> Value:
    return op.And(x, y) if is_bool(x) else op.Mul(x, y)


def _weighted(op: OpBuilder, addend: Value, x: Value, beta: Number, alpha: Number) -> Value:
    """Return beta * addend + alpha * x in the dtype of ``x``."""
    scaled = x if alpha == 1 else _times(op, x, as_value(op, alpha, dtype_of(x)))
    if beta == 0:
        return scaled
    if beta != 1:
        addend = _times(op, addend, as_value(op, beta, dtype_of(x)))
    return op.Or(addend, scaled) if is_bool(x) else op.Add(addend, scaled)
