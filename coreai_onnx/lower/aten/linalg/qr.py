"""Householder reflections: QR and products with Q."""

from __future__ import annotations

from coreai_onnx.lower.aten.linalg.lu import smaller
from coreai_onnx.lower.aten.linalg.matrix_steps import (
    column,
    identity,
    row,
    transposed,
    wide,
)
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import repeat
from coreai_onnx.lower.nodes.tensors import positions
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, set_dims
from coreai_onnx.lower.walk.registry import lowers


def reflections(op: OpBuilder, a: Value) -> tuple[Value, Value]:
    """Return R with the vectors of the reflections below it, and their factors, as LAPACK does.

    Reflection k is I - τ v vᵀ with v[k] = 1 and zeros above; it maps column k to β at index k and
    zeros below, with β = -sign(x[k]) ‖x[k:]‖, τ = (β - x[k]) / β. A column that is already zero
    below is unchanged, τ = 0.
    """
    dims = dims_of(a)
    count = smaller(dims[-2], dims[-1])
    rows, columns = (
        op.unsqueeze(positions(op, dims[-2]), [1]),
        op.unsqueeze(positions(op, dims[-1]), [0]),
    )
    steps = positions(op, count)
    zeros = op.const(0.0, a.dtype)
    start = set_dims(op.expand(zeros, [*dims[:-2], count]), (*dims[:-2], count))

    def step(op: OpBuilder, k: Value, state: list[Value]) -> list[Value]:
        x, taus = state
        whole = column(op, x, k)
        head = row(op, whole, k)
        below = op.Where(op.Greater(rows, k), whole, zeros)
        norm = op.ReduceSum(op.Mul(below, below), [len(dims) - 2], keepdims=1)
        still = op.Equal(norm, 0.0)
        size = op.Sqrt(op.Add(norm, op.Mul(head, head)))
        # β has the sign opposite to x[k], so that x[k] - β does not cancel.
        beta = op.Where(still, head, op.Where(op.Less(head, 0.0), size, op.Neg(size)))
        tau = op.Where(still, zeros, op.Div(op.Sub(beta, head), beta))
        vector = op.Where(still, zeros, op.Div(below, op.Sub(head, beta)))
        v = op.Where(op.Equal(rows, k), op.like(x, 1), vector)
        v = set_dims(v, (*dims[:-1], 1))
        moved = op.Sub(x, op.Mul(tau, op.Mul(v, op.MatMul(transposed(op, v), x))))
        column_k = op.Where(op.Equal(rows, k), beta, op.Where(op.Greater(rows, k), v, whole))
        x = op.Where(op.Greater(columns, k), moved, op.Where(op.Equal(columns, k), column_k, x))
        return [x, op.Where(op.Equal(steps, k), op.Squeeze(tau, [-1]), taus)]

    x, taus = repeat(op, count, [a, start], step)
    return x, taus


def reflected(
    op: OpBuilder, vectors: Value, taus: Value, x: Value, *, transpose: bool = False
) -> Value:
    """Return Q x, or Qᵀ x, for Q = H₀ H₁ … given by its reflections."""
    dims = dims_of(vectors)
    count = dims_of(taus)[-1]
    rows = op.unsqueeze(positions(op, dims[-2]), [1])

    def step(op: OpBuilder, number: Value, state: list[Value]) -> list[Value]:
        # Q x applies the last reflection first, Qᵀ x the first one.
        k = number if transpose else op.Sub(op.Sub(op.dim(count), 1), number)
        whole = column(op, vectors, k)
        below = op.Where(op.Greater(rows, k), whole, op.like(x, 0))
        v = op.Where(op.Equal(rows, k), op.like(x, 1), below)
        v = set_dims(v, (*dims[:-1], 1))
        tau = op.Unsqueeze(op.Gather(taus, op.Reshape(k, [1]), axis=len(dims) - 2), [-1])
        product = op.MatMul(transposed(op, v), state[0])
        return [op.Sub(state[0], op.Mul(tau, op.Mul(v, product)))]

    return repeat(op, count, [x], step)[0]


def orthogonal(op: OpBuilder, vectors: Value, taus: Value, columns: Dim) -> Value:
    """Return the first columns of Q."""
    dims = dims_of(vectors)
    target = (*dims[:-1], columns)
    ones = op.expand(identity(op, dims[-2], columns), list(target))
    return reflected(op, vectors, taus, set_dims(ones, target))


@lowers("aten.linalg_qr.default")
def qr(op: OpBuilder, A: Value, mode: str = "reduced") -> tuple[Value, Value]:
    """Q R = A; "reduced" has min(m, n) columns in Q, "complete" m, "r" no Q."""
    dims = dims_of(A)
    rank = len(dims)
    x, taus = reflections(op, wide(op, A))
    count = dims[-2] if mode == "complete" else smaller(dims[-2], dims[-1])
    upper = op.Trilu(x, upper=1)
    r = upper if count == dims[-2] else op.slice(upper, rank - 2, 0, count)
    if mode == "r":
        return op.expand(op.like(A, 0), [0]), r
    return orthogonal(op, x, taus, count), r


@lowers("aten.geqrf.default")
def geqrf(op: OpBuilder, self: Value) -> tuple[Value, Value]:
    """R with the vectors of the reflections below it, and their factors."""
    return reflections(op, wide(op, self))


@lowers("aten.linalg_householder_product.default")
def householder_product(op: OpBuilder, input: Value, tau: Value) -> Value:
    """The first columns of H₀ H₁ …."""
    return orthogonal(op, wide(op, input), wide(op, tau), dims_of(input)[-1])


@lowers("aten.ormqr.default")
def ormqr(
    op: OpBuilder,
    self: Value,
    input2: Value,
    input3: Value,
    *,
    left: bool = True,
    transpose: bool = False,
) -> Value:
    """Q C, Qᵀ C, C Q or C Qᵀ for the Q of reflections ``self`` with factors ``input2``."""
    vectors, taus, c = wide(op, self), wide(op, input2), wide(op, input3)
    if left:
        return reflected(op, vectors, taus, c, transpose=transpose)
    turned = transposed(op, c)
    return transposed(op, reflected(op, vectors, taus, turned, transpose=not transpose))
