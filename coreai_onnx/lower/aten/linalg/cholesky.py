"""Cholesky factors and triangular systems."""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.linalg.matrix_steps import (
    broadcast_batches,
    column,
    expand_info,
    identity,
    row,
    solve_triangular,
    transposed,
    wide,
)
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import repeat
from coreai_onnx.lower.nodes.tensors import positions
from coreai_onnx.lower.nodes.values import Value, dims_of, set_dims
from coreai_onnx.lower.walk.registry import lowers


def _factor(op: OpBuilder, a: Value) -> tuple[Value, Value]:
    """Return L of L Lᵀ = A and the order of the first minor that is not positive, or 0.

    Column k of L is column k of the remaining matrix, divided by the root of its diagonal element;
    its outer product is subtracted. Only the lower triangle is read.
    """
    dims = dims_of(a)
    size = dims[-1]
    rows, columns = op.unsqueeze(positions(op, size), [1]), op.unsqueeze(positions(op, size), [0])
    lower = op.Trilu(a, upper=0)

    def step(op: OpBuilder, k: Value, state: list[Value]) -> list[Value]:
        x, info = state
        whole = column(op, x, k)
        head = row(op, whole, k)
        # Not of Greater: NaN is not positive either.
        bad = op.Squeeze(op.Not(op.Greater(head, 0.0)), [-2, -1])
        info = op.Where(op.And(bad, op.Equal(info, 0)), op.Add(k, 1), info)
        scaled = op.Div(whole, op.Sqrt(head))
        below = set_dims(op.Where(op.Greater(rows, k), scaled, op.like(x, 0)), (*dims[:-1], 1))
        rest = op.Sub(x, op.Mul(below, transposed(op, below)))
        # Columns up to k are those of L; later ones hold the rest of the matrix.
        finished = op.And(op.Equal(columns, k), op.GreaterOrEqual(rows, k))
        return [op.Where(finished, scaled, rest), info]

    start = set_dims(lower, dims)
    x, info = repeat(op, size, [start, expand_info(op, dims[:-2])], step)
    return set_dims(op.Trilu(x, upper=0), dims), op.cast(info, torch.int32)


@lowers("aten.linalg_cholesky_ex.default")
def cholesky_ex(op: OpBuilder, self: Value, *, upper: bool = False) -> tuple[Value, Value]:
    """L of L Lᵀ = self (Lᵀ if ``upper``), and the first minor that is not positive, or 0."""
    x = wide(op, self)
    lower, info = _factor(op, transposed(op, x) if upper else x)
    return transposed(op, lower) if upper else lower, info


@lowers("aten.cholesky.default")
def cholesky(op: OpBuilder, self: Value, *, upper: bool = False) -> Value:
    """L of L Lᵀ = self, or Lᵀ."""
    return cholesky_ex(op, self, upper=upper)[0]


@lowers("aten.cholesky_solve.default")
def cholesky_solve(op: OpBuilder, self: Value, input2: Value, *, upper: bool = False) -> Value:
    """X of L Lᵀ X = self, the factor being ``input2``."""
    b, factor = broadcast_batches(op, wide(op, self), wide(op, input2))
    lower = transposed(op, factor) if upper else factor
    y = solve_triangular(op, lower, b, upper=False)
    return solve_triangular(op, transposed(op, lower), y, upper=True)


@lowers("aten.cholesky_inverse.default")
def cholesky_inverse(op: OpBuilder, self: Value, *, upper: bool = False) -> Value:
    """(L Lᵀ)⁻¹ from the factor."""
    size = dims_of(self)[-1]
    return cholesky_solve(op, identity(op, size, size), self, upper=upper)


# ---------------------------------------------------------------------- triangular systems
@lowers("aten.linalg_solve_triangular.default")
def linalg_solve_triangular(
    op: OpBuilder,
    self: Value,
    B: Value,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Value:
    """X of A X = B, or of X A = B, for triangular A."""
    a, b = broadcast_batches(op, wide(op, self), wide(op, B))
    if left:
        return solve_triangular(op, a, b, upper=upper, unit=unitriangular)
    # X A = B is Aᵀ Xᵀ = Bᵀ.
    turned, rhs = transposed(op, a), transposed(op, b)
    return transposed(op, solve_triangular(op, turned, rhs, upper=not upper, unit=unitriangular))


@lowers("aten.triangular_solve.default")
def triangular_solve(
    op: OpBuilder,
    self: Value,
    A: Value,
    *,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Value, Value]:
    """X of A X = self, or of Aᵀ X = self, and A for every matrix."""
    b, a = broadcast_batches(op, wide(op, self), wide(op, A))
    matrix = transposed(op, a) if transpose else a
    x = solve_triangular(op, matrix, b, upper=upper != transpose, unit=unitriangular)
    return x, a
