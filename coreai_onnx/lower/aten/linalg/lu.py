"""LU factorization with pivoting, determinants, inverses and linear systems."""

from __future__ import annotations

import torch

from coreai_onnx.export.compat.torch_names import Min
from coreai_onnx.lower.aten.linalg.matrix_steps import (
    broadcast_batches,
    column,
    diagonal,
    expand_info,
    identity,
    mask,
    row,
    solve_triangular,
    transposed,
    wide,
)
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import repeat
from coreai_onnx.lower.nodes.tensors import positions
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, ir_dtype_of, set_dims
from coreai_onnx.lower.walk.registry import lowers

Factors = tuple[Value, Value, Value]
"""LU in one matrix (float64), pivots counted from 1, order of the rows."""


def smaller(rows: Dim, columns: Dim) -> Dim:
    """Return the smaller of two dims."""
    if isinstance(rows, int) and isinstance(columns, int):
        return min(rows, columns)
    if rows == columns:
        return rows

    smaller: Dim = Min(rows, columns)
    return smaller


def factor(op: OpBuilder, a: Value, *, pivot: bool = True) -> Factors:
    """Return the factors of P L U = A, with the largest element of each column as the pivot."""
    dims = dims_of(a)
    batch, height, width = dims[:-2], dims[-2], dims[-1]
    count = smaller(height, width)
    rows, columns = positions(op, height), op.unsqueeze(positions(op, width), [0])
    steps = positions(op, count)
    order = set_dims(op.expand(rows, [*batch, height]), (*batch, height))
    pivots = set_dims(op.expand(op.Add(steps, 1), [*batch, count]), (*batch, count))

    def step(op: OpBuilder, k: Value, state: list[Value]) -> list[Value]:
        x, order, pivots = state
        if pivot:
            size = op.Squeeze(op.Abs(column(op, x, k)), [-1])
            # -1 is below every absolute value, so that finished rows are never chosen.
            open_ = op.Where(op.GreaterOrEqual(rows, k), size, op.like(size, -1))
            best = op.ArgMax(open_, axis=-1, keepdims=1)
            swapped = op.Where(op.Equal(rows, k), best, op.Where(op.Equal(rows, best), k, rows))
            index = op.Expand(op.Unsqueeze(swapped, [-1]), op.Shape(x))
            x = set_dims(op.GatherElements(x, index, axis=len(dims) - 2), dims)
            order = op.GatherElements(order, swapped, axis=len(dims) - 2)
            pivots = op.Where(op.Equal(steps, k), op.Add(best, 1), pivots)
        below = op.unsqueeze(op.Greater(rows, k), [1])
        whole = column(op, x, k)
        top = row(op, x, k)
        head = row(op, whole, k)
        # As in LAPACK, a zero pivot leaves its column as it is; the caller reports it.
        usable = op.And(below, op.Not(op.Equal(head, 0.0)))
        scaled = op.Where(usable, op.Div(whole, head), op.Where(below, whole, op.like(x, 0)))
        kept = op.Where(op.And(below, op.Equal(columns, k)), scaled, x)
        right = op.Where(op.Greater(columns, k), top, op.like(x, 0))
        update = op.Mul(op.Where(usable, scaled, op.like(x, 0)), right)
        return [op.Sub(kept, update), order, pivots]

    lu, order, pivots = repeat(op, count, [a, order, pivots], step)
    return lu, pivots, order


def _info(op: OpBuilder, lu: Value) -> Value:
    """Return, per matrix, the 1-based index of the first zero on the diagonal of U, or 0."""
    dims = dims_of(lu)
    count = smaller(dims[-2], dims[-1])
    if count == 0:
        return expand_info(op, dims[:-2])
    steps = positions(op, count)
    ones = op.cast(identity(op, dims[-2], dims[-1]), torch.bool)
    zeros = op.cast(op.And(ones, op.Equal(lu, 0.0)), torch.int64)
    # The longer axis is reduced; one number per element of the diagonal remains.
    axis = -2 if count == dims[-1] else -1
    hit = op.ReduceMax(zeros, [len(dims) + axis], keepdims=0)
    # 2**31 is greater than any index and means that there is no zero.
    first = op.ReduceMin(op.Where(op.Greater(hit, 0), op.Add(steps, 1), 2**31), [-1], keepdims=0)
    return op.cast(op.Where(op.Equal(first, 2**31), 0, first), torch.int32)


def solved(op: OpBuilder, lu: Value, order: Value, b: Value, *, transpose: bool = False) -> Value:
    """Return X of A X = B (or of Aᵀ X = B) from the factors of A."""
    dims = dims_of(b)
    if 0 in dims:
        return op.expand(op.like(b, 0), list(dims))
    if transpose:
        # Aᵀ = Uᵀ Lᵀ Pᵀ, solved from the left.
        turned = transposed(op, lu)
        y = solve_triangular(op, turned, b, upper=False)
        x = solve_triangular(op, turned, y, upper=True, unit=True)
        index = op.Expand(op.Unsqueeze(order, [-1]), op.shape(dims))
        # A scatter undoes a gather with the same index, so that the order need not be inverted.
        return set_dims(op.ScatterElements(x, index, x, axis=len(dims) - 2), dims)
    index = op.Expand(op.Unsqueeze(order, [-1]), op.shape(dims))
    y = set_dims(op.GatherElements(b, index, axis=len(dims) - 2), dims)
    y = solve_triangular(op, lu, y, upper=False, unit=True)
    return solve_triangular(op, lu, y, upper=True)


# ---------------------------------------------------------------------- determinants
def _sign(op: OpBuilder, pivots: Value) -> Value:
    """Return the sign of the exchanges: -1 for an odd number of them."""
    count = dims_of(pivots)[-1]
    moved = op.Not(op.Equal(pivots, op.Add(positions(op, count), 1)))
    odd = op.Mod(op.ReduceSum(op.cast(moved, torch.int64), [-1], keepdims=0), 2)
    return op.Sub(1.0, op.Mul(wide(op, odd), 2.0))


def _nothing(op: OpBuilder, a: Value) -> tuple[Value, Value]:
    """Return the factors and pivots of matrices without elements."""
    dims = dims_of(a)
    return op.expand(op.like(a, 0), list(dims)), op.expand(op.const(0), list(dims[:-1]))


@lowers("aten._linalg_det.default")
def det(op: OpBuilder, A: Value) -> tuple[Value, Value, Value]:
    """± the product of the diagonal of U."""
    if dims_of(A)[-1] == 0:
        return op.expand(op.like(A, 1), list(dims_of(A)[:-2])), *_nothing(op, A)
    lu, pivots, _ = factor(op, wide(op, A))
    size = op.ReduceProd(diagonal(op, lu), [-1], keepdims=0)
    return op.Mul(size, _sign(op, pivots)), lu, pivots


@lowers("aten._linalg_slogdet.default")
def slogdet(op: OpBuilder, A: Value) -> tuple[Value, Value, Value, Value]:
    """The sign of the determinant and the sum of log |U[i, i]|."""
    if dims_of(A)[-1] == 0:
        ones, zeros = (op.expand(op.like(A, n), list(dims_of(A)[:-2])) for n in (1, 0))
        return ones, zeros, *_nothing(op, A)
    lu, pivots, _ = factor(op, wide(op, A))
    elements = diagonal(op, lu)
    size = op.ReduceSum(op.Log(op.Abs(elements)), [-1], keepdims=0)
    signs = op.ReduceProd(op.Sign(elements), [-1], keepdims=0)
    return op.Mul(signs, _sign(op, pivots)), size, lu, pivots


# ---------------------------------------------------------------------- inverses and systems
@lowers("aten.linalg_inv_ex.default")
def inv_ex(op: OpBuilder, A: Value) -> tuple[Value, Value]:
    """A⁻¹, and the number of the first zero pivot, or 0."""
    dims = dims_of(A)
    if 0 in dims:
        return op.expand(op.like(A, 0), list(dims)), expand_info(op, dims[:-2])
    lu, _, order = factor(op, wide(op, A))
    ones = set_dims(op.expand(identity(op, dims[-1], dims[-1]), list(dims)), dims)
    return solved(op, lu, order, ones), _info(op, lu)


@lowers("aten._linalg_solve_ex.default")
def solve_ex(
    op: OpBuilder, A: Value, B: Value, *, left: bool = True
) -> tuple[Value, Value, Value, Value]:
    """X of A X = B, or of X A = B; B may be vectors."""
    vectors = len(dims_of(B)) == 1 or dims_of(B) == dims_of(A)[:-1]
    b = op.unsqueeze(wide(op, B), [len(dims_of(B))]) if vectors else wide(op, B)
    lu, pivots, order = factor(op, wide(op, A))
    if not left:
        b = transposed(op, b)
    each, b = broadcast_batches(op, lu, b)
    batch = dims_of(each)[:-2]
    rows = set_dims(op.expand(order, [*batch, dims_of(A)[-1]]), (*batch, dims_of(A)[-1]))
    x = solved(op, each, rows, b, transpose=not left)
    if not left:
        x = transposed(op, x)
    return op.squeeze(x, [-1]) if vectors else x, lu, pivots, _info(op, lu)


# ---------------------------------------------------------------------- the factors themselves
@lowers("aten.linalg_lu_factor_ex.default")
def lu_factor_ex(op: OpBuilder, A: Value, *, pivot: bool = True) -> tuple[Value, Value, Value]:
    """L and U in one matrix, pivots, and the number of the first zero pivot, or 0."""
    lu, pivots, _ = factor(op, wide(op, A), pivot=pivot)
    return lu, pivots, _info(op, lu)


@lowers("aten.linalg_lu.default")
def lu_(op: OpBuilder, A: Value, *, pivot: bool = True) -> Factors:
    """P, L and U of A = P L U; without pivoting P is empty."""
    lu, _, order = factor(op, wide(op, A), pivot=pivot)
    lower, upper = _triangles(op, lu)
    return _permutation(op, order) if pivot else op.const(torch.zeros(0)), lower, upper


@lowers("aten.lu_unpack.default")
def lu_unpack(
    op: OpBuilder,
    LU_data: Value,
    LU_pivots: Value,
    *,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> Factors:
    """P, L and U from the matrix that holds L and U, and the pivots."""
    empty = op.const(torch.zeros(0))
    height = dims_of(LU_data)[-2]
    p = _permutation(op, _order(op, LU_pivots, height)) if unpack_pivots else empty
    lower, upper = _triangles(op, LU_data) if unpack_data else (empty, empty)
    return p, lower, upper


@lowers("aten.linalg_lu_solve.default")
def lu_solve(
    op: OpBuilder, LU: Value, pivots: Value, B: Value, *, left: bool = True, adjoint: bool = False
) -> Value:
    """X of A X = B from the factors of A, of Aᵀ if ``adjoint``, of X A = B if not ``left``."""
    b = wide(op, B) if left else transposed(op, wide(op, B))
    lu, b = broadcast_batches(op, wide(op, LU), b)
    batch, size = dims_of(lu)[:-2], dims_of(lu)[-1]
    order = _order(op, pivots, size)
    order = set_dims(op.expand(order, [*batch, size]), (*batch, size))
    # X A = B is Aᵀ Xᵀ = Bᵀ: together with the adjoint, the transposes cancel.
    x = solved(op, lu, order, b, transpose=adjoint == left)
    return x if left else transposed(op, x)


def _order(op: OpBuilder, pivots: Value, height: Dim) -> Value:
    """Return the order of the rows after all exchanges."""
    dims = (*dims_of(pivots)[:-1], height)
    rows = positions(op, height)
    swaps = op.Sub(op.cast(pivots, torch.int64), 1)
    start = set_dims(op.expand(rows, list(dims)), dims)

    def step(op: OpBuilder, k: Value, state: list[Value]) -> list[Value]:
        best = op.Gather(swaps, op.Reshape(k, [1]), axis=len(dims) - 1)
        swapped = op.Where(op.Equal(rows, k), best, op.Where(op.Equal(rows, best), k, rows))
        return [op.GatherElements(state[0], swapped, axis=len(dims) - 1)]

    return repeat(op, dims_of(pivots)[-1], [start], step)[0]


def _permutation(op: OpBuilder, order: Value) -> Value:
    """Return P with P[order[i], i] = 1."""
    height = dims_of(order)[-1]
    rows = op.unsqueeze(positions(op, height), [1])
    return mask(op, op.Equal(rows, op.unsqueeze(order, [len(dims_of(order)) - 1])))


def _triangles(op: OpBuilder, lu: Value) -> tuple[Value, Value]:
    """Return L with ones on its diagonal, and U."""
    dims = dims_of(lu)
    height, width = dims[-2], dims[-1]
    count = smaller(height, width)
    left = lu if count == width else op.slice(lu, len(dims) - 1, 0, count)
    upper = lu if count == height else op.slice(lu, len(dims) - 2, 0, count)
    ones = op.cast(identity(op, height, count), ir_dtype_of(lu))
    return op.Add(op.Trilu(left, -1, upper=0), ones), op.Trilu(upper, upper=1)
