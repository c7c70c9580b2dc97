"""L D Lᵀ factorization with pivoting (Bunch and Kaufman 1977), as LAPACK's sytf2.

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
    numbers,
    transposed,
    wide,
)
from coreai_onnx.lower.aten.loops.counted_loop import repeat
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Value, dims_of, set_dims
from coreai_onnx.lower.walk.registry import lowers

_GROWTH = (1 + math.sqrt(17)) / 8
"""Threshold of the ratio between elements beside a pivot and the pivot; bounds their growth."""


class _EliminationStep:
    """One column of the elimination, of matrices ``x`` that are symmetric from ``k`` on.

    Every value is a batch of matrices, rows or columns, with missing axes of size 1.
    """

    def __init__(self, op: OpBuilder, x: Value, k: Value) -> None:
        self.op, self.x, self.k = op, x, k
        self.rank = len(dims_of(x))
        size = dims_of(x)[-1]
        self.rows = op.unsqueeze(numbers(op, size), [1])
        self.columns = op.unsqueeze(numbers(op, size), [0])

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
        sizes = op.Where(among, op.Abs(column), op.like(column, -1))
        return op.Max(op.ReduceMax(sizes, [self.rank - 2], keepdims=1), 0.0)

    def pivot(self) -> tuple[Value, Value, Value]:
        """Return the row to exchange, whether the block has two columns, and if it is zero."""
        op, k = self.op, self.k
        column = self.column(k)
        own, below = op.Abs(self.at(column, k)), op.Greater(self.rows, k)
        sizes = op.Where(below, op.Abs(column), op.like(column, -1))
        best = op.ArgMax(sizes, axis=self.rank - 2, keepdims=1)
        most = self.largest(column, below)
        other = self.column(best)
        beside = op.And(op.GreaterOrEqual(self.rows, k), op.Not(op.Equal(self.rows, best)))
        across = self.largest(other, beside)
        stays = op.Or(
            op.GreaterOrEqual(own, op.Mul(most, _GROWTH)),
            op.GreaterOrEqual(op.Mul(own, across), op.Mul(op.Mul(most, most), _GROWTH)),
        )
        comes = op.GreaterOrEqual(op.Abs(self.at(other, best)), op.Mul(across, _GROWTH))
        two = op.Not(op.Or(stays, comes))
        return op.Where(stays, k, best), two, op.Equal(op.Max(own, most), 0.0)

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


def _eliminated(op: OpBuilder, a: Value) -> tuple[Value, Value, Value]:
    """Return L below D in one matrix, the pivots, and the number of the first zero column or 0."""
    dims = dims_of(a)
    size, batch = dims[-1], dims[:-2]
    lower = op.Trilu(a, upper=0)
    x = set_dims(op.Add(lower, transposed(op, set_dims(op.Trilu(a, -1, upper=0), dims))), dims)
    ones = (*batch, 1, 1)
    waits = set_dims(op.expand(op.const(False), list(ones)), ones)
    pivots = set_dims(op.expand(op.const(0), [*batch, size, 1]), (*batch, size, 1))
    info = set_dims(op.expand(op.const(0), list(ones)), ones)

    def step(op: OpBuilder, k: Value, state: list[Value]) -> list[Value]:
        x, made, pivots, waits, info = state
        found = _EliminationStep(op, x, k)
        chosen, two, none = found.pivot()
        now = op.Not(waits)
        two = op.And(two, op.And(now, op.Not(none)))
        second = op.Add(k, 1)
        place = op.Where(two, second, k)
        x = found.exchanged(op.Where(now, place, k), op.Where(now, chosen, k))
        found = _EliminationStep(op, x, k)
        rows, columns = found.rows, found.columns
        first, next_ = found.column(k), found.column(second)
        top, beside, low = found.at(first, k), found.at(first, second), found.at(next_, second)
        zero, one = op.like(x, 0), op.like(x, 1)
        after = op.Greater(rows, op.Where(two, second, k))
        x1, x2 = (op.Where(after, c, zero) for c in (first, next_))
        # l1, l2 = x1, x2 times the inverse of D
        det = op.Where(two, op.Sub(op.Mul(top, low), op.Mul(beside, beside)), one)
        single = op.Div(x1, op.Where(none, one, top))
        pair = op.Div(op.Sub(op.Mul(low, x1), op.Mul(beside, x2)), det)
        l1 = op.Where(two, pair, single)
        l2 = op.Div(op.Sub(op.Mul(top, x2), op.Mul(beside, x1)), det)
        l2 = op.Where(two, l2, zero)
        acts = op.And(now, op.Not(none))
        turn = [*range(found.rank - 2), found.rank - 1, found.rank - 2]
        update = op.Add(op.Mul(l1, op.transpose(x1, turn)), op.Mul(l2, op.transpose(x2, turn)))
        x = op.Sub(x, op.Where(acts, update, zero))
        head = op.Add(l1, op.Where(op.Equal(rows, k), top, zero))
        head = op.Add(head, op.Where(op.And(two, op.Equal(rows, second)), beside, zero))
        tail = op.Add(l2, op.Where(op.Equal(rows, second), low, zero))
        made = op.Where(op.And(now, op.Equal(columns, k)), head, made)
        made = op.Where(op.And(two, op.Equal(columns, second)), tail, made)
        mark = op.Where(two, op.Sub(op.Neg(chosen), 1), op.Add(op.Where(none, k, chosen), 1))
        here = op.And(now, op.Or(op.Equal(rows, k), op.And(two, op.Equal(rows, second))))
        pivots = op.Where(here, mark, pivots)
        info = op.Where(op.And(op.And(now, none), op.Equal(info, 0)), second, info)
        return [x, made, pivots, two, info]

    start = set_dims(op.expand(op.like(a, 0), list(dims)), dims)
    _, made, pivots, _, info = repeat(op, size, [x, start, pivots, waits, info], step)
    flat = set_dims(op.Squeeze(pivots, [-1]), (*batch, size))
    return made, flat, set_dims(op.Squeeze(info, [-2, -1]), batch)


@lowers("aten.linalg_ldl_factor_ex.default")
def ldl_factor_ex(op: OpBuilder, self: Value) -> tuple[Value, Value, Value]:
    """L below D in one matrix, pivots, and the number of the first zero column, or 0."""
    dims = dims_of(self)
    if 0 in dims:
        pivots = op.expand(op.const(0), list(dims[:-1]))
        return op.expand(op.like(self, 0), list(dims)), pivots, expand_info(op, dims[:-2])
    return _eliminated(op, wide(op, self))


@lowers("aten.linalg_ldl_solve.default")
def ldl_solve(op: OpBuilder, LD: Value, pivots: Value, B: Value) -> Value:
    """X of A X = B from the factors of A, which is reconstructed and solved by LU."""
    if 0 in dims_of(B) or 0 in dims_of(LD):
        batch = common_batch(dims_of(LD)[:-2], dims_of(B)[:-2])
        return op.expand(op.like(B, 0), [*batch, *dims_of(B)[-2:]])
    lu, _, order = factor(op, _assembled(op, wide(op, LD), op.cast(pivots, torch.int64)))
    each, b = broadcast_batches(op, lu, wide(op, B))
    *batch, size = dims_of(each)[:-1]
    rows = set_dims(op.expand(order, [*batch, size]), (*batch, size))
    return solved(op, each, rows, b)


def _assembled(op: OpBuilder, made: Value, pivots: Value) -> Value:
    """Return A from its factors, by undoing the elimination from the last column on."""
    dims = dims_of(made)
    size, rank = dims[-1], len(dims)
    # in a run of blocks of two, the first column of a block has an even number of columns before it
    negative = op.cast(op.Less(pivots, 0), torch.int64)
    before = op.Sub(op.CumSum(negative, op.const(rank - 2)), negative)
    leads = op.And(op.Less(pivots, 0), op.Equal(op.Mod(before, 2), 0))
    ends = op.And(op.Less(pivots, 0), op.Not(leads))

    def step(op: OpBuilder, number: Value, state: list[Value]) -> list[Value]:
        k = op.Sub(op.Sub(op.dim(size), 1), number)
        second = op.Add(k, 1)
        ld = _EliminationStep(op, made, k)
        flat = [op.Unsqueeze(x, [-1]) for x in (pivots, op.cast(leads, torch.int64))]
        flat.append(op.Unsqueeze(op.cast(ends, torch.int64), [-1]))
        pivot, lead, end = (op.Gather(x, op.Reshape(k, [1]), axis=rank - 2) for x in flat)
        two, skip = op.Greater(lead, 0), op.Greater(end, 0)
        zero = op.like(made, 0)
        first, next_ = ld.column(k), ld.column(second)
        top, beside, low = ld.at(first, k), ld.at(first, second), ld.at(next_, second)
        last = op.Where(two, second, k)
        after = op.Greater(ld.rows, last)
        l1, l2 = op.Where(after, first, zero), op.Where(op.And(two, after), next_, zero)
        beside = op.Where(two, beside, zero)
        unit1 = op.Add(l1, op.cast(op.Equal(ld.rows, k), torch.float64))
        unit2 = op.Add(l2, op.cast(op.And(two, op.Equal(ld.rows, second)), torch.float64))
        turn = [*range(rank - 2), rank - 1, rank - 2]
        x1 = op.Add(op.Mul(unit1, top), op.Mul(unit2, beside))
        x2 = op.Add(op.Mul(unit1, beside), op.Mul(unit2, low))
        update = op.Add(
            op.Mul(x1, op.transpose(unit1, turn)), op.Mul(x2, op.transpose(unit2, turn))
        )
        x = set_dims(op.Add(state[0], op.Where(skip, zero, update)), dims)
        other = op.Where(skip, last, op.Sub(op.Abs(pivot), 1))
        return [_EliminationStep(op, x, k).exchanged(last, other)]

    start = set_dims(op.expand(op.like(made, 0), list(dims)), dims)
    return repeat(op, size, [start], step)[0]
