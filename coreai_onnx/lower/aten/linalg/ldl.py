"""L D Lᵀ factorization with pivoting, as LAPACK's sytf2.

It is algorithm A of J. R. Bunch and L. Kaufman, "Some stable methods for calculating inertia and
solving symmetric linear systems", Mathematics of Computation 31 (1977).

D has blocks of one and of two columns. A pivot p > 0 means that row p - 1 was exchanged with a
single column; a pair of pivots -p, that it was exchanged with the second column of a block of two.
"""

from __future__ import annotations

import math

import torch

from coreai_onnx.lower.aten.linalg.lu import factor, solved
from coreai_onnx.lower.aten.linalg.matrix_steps import (
    broadcast_batches,
    common_batch,
    expand_info,
    transposed,
    wide,
)
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import repeat
from coreai_onnx.lower.nodes.tensors import positions
from coreai_onnx.lower.nodes.values import Value, dims_of, set_dims
from coreai_onnx.lower.walk.registry import lowers

_ALPHA = (1 + math.sqrt(17)) / 8
"""α of the paper: two steps of one column then bound the growth of elements as one of two does."""


class _EliminationStep:
    """One column of the elimination, of matrices ``x`` that are symmetric from ``k`` on.

    Every value is a batch of matrices, rows or columns, with missing axes of size 1.
    """

    def __init__(self, op: OpBuilder, x: Value, k: Value) -> None:
        self.op, self.x, self.k = op, x, k
        self.rank = len(dims_of(x))
        size = dims_of(x)[-1]
        self.rows = op.unsqueeze(positions(op, size), [1])
        self.columns = op.unsqueeze(positions(op, size), [0])

    def column(self, k: Value) -> Value:
        """Return column ``k``, which may differ from matrix to matrix."""
        op = self.op
        kept = op.Where(op.Equal(self.columns, k), self.x, op.like(self.x, 0))
        return op.ReduceSum(kept, [self.rank - 1], keepdims=1)

    def at(self, column: Value, k: Value) -> Value:
        """Return the element of a column in row ``k``."""
        op = self.op
        kept = op.Where(op.Equal(self.rows, k), column, op.like(column, 0))
        return op.ReduceSum(kept, [self.rank - 2], keepdims=1)

    def largest(self, column: Value, among: Value) -> Value:
        """Return the largest absolute value in a column, among selected rows."""
        op = self.op
        # -1 is below every absolute value; if no row is selected, the result is 0.
        sizes = op.Where(among, op.Abs(column), op.like(column, -1))
        return op.Max(op.ReduceMax(sizes, [self.rank - 2], keepdims=1), 0.0)

    def pivot(self) -> tuple[Value, Value, Value]:
        """Return the row to exchange, whether the block has two columns, and if it is zero."""
        op, k = self.op, self.k
        column = self.column(k)
        diagonal, below = op.Abs(self.at(column, k)), op.Greater(self.rows, k)
        sizes = op.Where(below, op.Abs(column), op.like(column, -1))
        r = op.ArgMax(sizes, axis=self.rank - 2, keepdims=1)
        most = self.largest(column, below)  # λ of the paper
        column_r = self.column(r)
        others = op.And(op.GreaterOrEqual(self.rows, k), op.Not(op.Equal(self.rows, r)))
        most_r = self.largest(column_r, others)  # σ
        stays = op.Or(
            op.GreaterOrEqual(diagonal, op.Mul(most, _ALPHA)),
            op.GreaterOrEqual(op.Mul(diagonal, most_r), op.Mul(op.Mul(most, most), _ALPHA)),
        )
        moves = op.GreaterOrEqual(op.Abs(self.at(column_r, r)), op.Mul(most_r, _ALPHA))
        is_pair = op.Not(op.Or(stays, moves))
        return op.Where(stays, k, r), is_pair, op.Equal(op.Max(diagonal, most), 0.0)

    def exchanged(self, first: Value, second: Value) -> Value:
        """Return the matrices with two rows and the same two columns exchanged."""
        op, dims = self.op, dims_of(self.x)
        swapped = op.Where(
            op.Equal(self.rows, first),
            second,
            op.Where(op.Equal(self.rows, second), first, self.rows),
        )
        by_rows = op.GatherElements(
            self.x, op.Expand(swapped, op.Shape(self.x)), axis=self.rank - 2
        )
        across = op.transpose(swapped, [*range(self.rank - 2), self.rank - 1, self.rank - 2])
        index = op.Expand(across, op.Shape(self.x))
        return set_dims(op.GatherElements(by_rows, index, axis=self.rank - 1), dims)


def _factorize(op: OpBuilder, a: Value) -> tuple[Value, Value, Value]:
    """Return L below D in one matrix, the pivots, and the number of the first zero column or 0."""
    dims = dims_of(a)
    size, batch = dims[-1], dims[:-2]
    # As in torch, only the lower triangle is read.
    lower = op.Trilu(a, upper=0)
    x = set_dims(op.Add(lower, transposed(op, set_dims(op.Trilu(a, -1, upper=0), dims))), dims)
    ones = (*batch, 1, 1)
    is_second = set_dims(op.expand(op.const(False), list(ones)), ones)
    pivots = set_dims(op.expand(op.const(0), [*batch, size, 1]), (*batch, size, 1))
    info = set_dims(op.expand(op.const(0), list(ones)), ones)

    def step(op: OpBuilder, k: Value, state: list[Value]) -> list[Value]:
        """Eliminate column k, or columns k and k + 1 of a pair, whose second step does nothing."""
        x, factors, pivots, is_second, info = state
        matrices = _EliminationStep(op, x, k)
        pivot, is_pair, is_zero = matrices.pivot()
        is_first = op.Not(is_second)
        is_pair = op.And(is_pair, op.And(is_first, op.Not(is_zero)))
        second = op.Add(k, 1)
        exchanged = op.Where(is_pair, second, k)
        x = matrices.exchanged(op.Where(is_first, exchanged, k), op.Where(is_first, pivot, k))
        matrices = _EliminationStep(op, x, k)
        rows, columns = matrices.rows, matrices.columns
        column1, column2 = matrices.column(k), matrices.column(second)
        d11, d21 = matrices.at(column1, k), matrices.at(column1, second)
        d22 = matrices.at(column2, second)
        zero, one = op.like(x, 0), op.like(x, 1)
        after = op.Greater(rows, op.Where(is_pair, second, k))
        x1, x2 = (op.Where(after, c, zero) for c in (column1, column2))
        # l1, l2 = x1, x2 times the inverse of D
        # Where computes both branches; a divisor of 1 keeps the unused one finite.
        det = op.Where(is_pair, op.Sub(op.Mul(d11, d22), op.Mul(d21, d21)), one)
        of_single = op.Div(x1, op.Where(is_zero, one, d11))
        of_pair = op.Div(op.Sub(op.Mul(d22, x1), op.Mul(d21, x2)), det)
        l1 = op.Where(is_pair, of_pair, of_single)
        l2 = op.Div(op.Sub(op.Mul(d11, x2), op.Mul(d21, x1)), det)
        l2 = op.Where(is_pair, l2, zero)
        eliminates = op.And(is_first, op.Not(is_zero))
        turn = [*range(matrices.rank - 2), matrices.rank - 1, matrices.rank - 2]
        update = op.Add(op.Mul(l1, op.transpose(x1, turn)), op.Mul(l2, op.transpose(x2, turn)))
        x = op.Sub(x, op.Where(eliminates, update, zero))
        stored1 = op.Add(l1, op.Where(op.Equal(rows, k), d11, zero))
        stored1 = op.Add(stored1, op.Where(op.And(is_pair, op.Equal(rows, second)), d21, zero))
        stored2 = op.Add(l2, op.Where(op.Equal(rows, second), d22, zero))
        factors = op.Where(op.And(is_first, op.Equal(columns, k)), stored1, factors)
        factors = op.Where(op.And(is_pair, op.Equal(columns, second)), stored2, factors)
        number = op.Where(is_pair, op.Sub(op.Neg(pivot), 1), op.Add(op.Where(is_zero, k, pivot), 1))
        of_block = op.Or(op.Equal(rows, k), op.And(is_pair, op.Equal(rows, second)))
        pivots = op.Where(op.And(is_first, of_block), number, pivots)
        info = op.Where(op.And(op.And(is_first, is_zero), op.Equal(info, 0)), second, info)
        return [x, factors, pivots, is_pair, info]

    start = set_dims(op.expand(op.like(a, 0), list(dims)), dims)
    _, factors, pivots, _, info = repeat(op, size, [x, start, pivots, is_second, info], step)
    flat = set_dims(op.Squeeze(pivots, [-1]), (*batch, size))
    return factors, flat, set_dims(op.Squeeze(info, [-2, -1]), batch)


@lowers("aten.linalg_ldl_factor_ex.default")
def ldl_factor_ex(op: OpBuilder, self: Value) -> tuple[Value, Value, Value]:
    """L below D in one matrix, pivots, and the number of the first zero column, or 0."""
    dims = dims_of(self)
    if 0 in dims:
        pivots = op.expand(op.const(0), list(dims[:-1]))
        return op.expand(op.like(self, 0), list(dims)), pivots, expand_info(op, dims[:-2])
    return _factorize(op, wide(op, self))


@lowers("aten.linalg_ldl_solve.default")
def ldl_solve(op: OpBuilder, LD: Value, pivots: Value, B: Value) -> Value:
    """X of A X = B from the factors of A, which is reconstructed and solved by LU."""
    if 0 in dims_of(B) or 0 in dims_of(LD):
        batch = common_batch(dims_of(LD)[:-2], dims_of(B)[:-2])
        return op.expand(op.like(B, 0), [*batch, *dims_of(B)[-2:]])
    lu, _, order = factor(op, _multiply(op, wide(op, LD), op.cast(pivots, torch.int64)))
    each, b = broadcast_batches(op, lu, wide(op, B))
    *batch, size = dims_of(each)[:-1]
    rows = set_dims(op.expand(order, [*batch, size]), (*batch, size))
    return solved(op, each, rows, b)


def _multiply(op: OpBuilder, factors: Value, pivots: Value) -> Value:
    """Return A from its factors, by undoing the elimination from the last column on."""
    dims = dims_of(factors)
    size, rank = dims[-1], len(dims)
    # in a run of pairs, the first column of a pair has an even number of columns before it
    negative = op.cast(op.Less(pivots, 0), torch.int64)
    before = op.Sub(op.CumSum(negative, op.const(rank - 2)), negative)
    is_first = op.And(op.Less(pivots, 0), op.Equal(op.Mod(before, 2), 0))
    is_second = op.And(op.Less(pivots, 0), op.Not(is_first))

    def step(op: OpBuilder, number: Value, state: list[Value]) -> list[Value]:
        k = op.Sub(op.Sub(op.dim(size), 1), number)
        second = op.Add(k, 1)
        ld = _EliminationStep(op, factors, k)
        by_column = [op.Unsqueeze(x, [-1]) for x in (pivots, op.cast(is_first, torch.int64))]
        by_column.append(op.Unsqueeze(op.cast(is_second, torch.int64), [-1]))
        pivot, first, skipped = (op.Gather(x, op.Reshape(k, [1]), axis=rank - 2) for x in by_column)
        is_pair, skips = op.Greater(first, 0), op.Greater(skipped, 0)
        zero = op.like(factors, 0)
        column1, column2 = ld.column(k), ld.column(second)
        d11, d21, d22 = ld.at(column1, k), ld.at(column1, second), ld.at(column2, second)
        last = op.Where(is_pair, second, k)
        after = op.Greater(ld.rows, last)
        l1, l2 = op.Where(after, column1, zero), op.Where(op.And(is_pair, after), column2, zero)
        d21 = op.Where(is_pair, d21, zero)
        unit1 = op.Add(l1, op.cast(op.Equal(ld.rows, k), torch.float64))
        unit2 = op.Add(l2, op.cast(op.And(is_pair, op.Equal(ld.rows, second)), torch.float64))
        turn = [*range(rank - 2), rank - 1, rank - 2]
        x1 = op.Add(op.Mul(unit1, d11), op.Mul(unit2, d21))
        x2 = op.Add(op.Mul(unit1, d21), op.Mul(unit2, d22))
        update = op.Add(
            op.Mul(x1, op.transpose(unit1, turn)), op.Mul(x2, op.transpose(unit2, turn))
        )
        x = set_dims(op.Add(state[0], op.Where(skips, zero, update)), dims)
        exchanged = op.Where(skips, last, op.Sub(op.Abs(pivot), 1))
        return [_EliminationStep(op, x, k).exchanged(last, exchanged)]

    start = set_dims(op.expand(op.like(factors, 0), list(dims)), dims)
    return repeat(op, size, [start], step)[0]
