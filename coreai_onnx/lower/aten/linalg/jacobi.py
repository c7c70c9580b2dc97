"""Jacobi rotations of all pairs of rows, in rounds of disjoint pairs (round-robin tournament).

In round t of a tournament of an odd number M of players, i meets j with i + j ≡ t modulo M. With
an even number of players the last one meets the player that is otherwise paired with itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from coreai_onnx.lower.aten.linalg.matrix_steps import diagonal, identity, transposed
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import repeat
from coreai_onnx.lower.nodes.tensors import positions
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, set_dims

SWEEPS = 16
"""Maximum number of sweeps; fewer suffice, since convergence is quadratic."""


def rotations(op: OpBuilder, gram: Value, number: Value) -> Value:
    """Return the rotations J for which Jᵀ G J has zeros at the pairs of a round.

    For a pair (i, j): τ = (g_jj - g_ii) / 2 g_ij, t = sign(τ) / (|τ| + √(1 + τ²)),
    c = 1 / √(1 + t²), s = t c; J[i, i] = J[j, j] = c, J[i, j] = s = -J[j, i].
    """
    size = dims_of(gram)[-1]
    rank = len(dims_of(gram))
    index = positions(op, size)
    partner = _partners(op, size, number)
    met = op.Equal(op.unsqueeze(partner, [1]), op.unsqueeze(index, [0]))
    met = op.And(met, op.Not(op.Equal(op.unsqueeze(index, [1]), op.unsqueeze(index, [0]))))
    zero, one = op.like(gram, 0), op.like(gram, 1)
    beside = op.ReduceSum(op.Where(met, gram, zero), [rank - 1], keepdims=0)
    elements = diagonal(op, gram)
    others = op.Gather(elements, partner, axis=rank - 2)
    flat = op.Equal(beside, 0.0)
    tau = op.Div(op.Sub(others, elements), op.Mul(op.Where(flat, one, beside), 2.0))
    # Equal diagonal elements need a rotation by 45°, where Sign would be 0. The partners turn in
    # opposite directions, as for other values of τ.
    first = op.Where(op.Less(index, partner), one, op.like(gram, -1))
    sign = op.Where(op.Equal(tau, 0.0), first, op.Sign(tau))
    root = op.Sqrt(op.Add(op.Mul(tau, tau), 1.0))
    tangent = op.Where(flat, zero, op.Div(sign, op.Add(op.Abs(tau), root)))
    cosine = op.Div(1.0, op.Sqrt(op.Add(op.Mul(tangent, tangent), 1.0)))
    sine = op.Mul(tangent, cosine)
    beside_own = op.Where(met, op.unsqueeze(sine, [rank - 1]), zero)
    ones = op.cast(identity(op, size, size), torch.bool)
    j = op.Where(ones, op.unsqueeze(cosine, [rank - 1]), beside_own)
    return set_dims(j, dims_of(gram))


def _partners(op: OpBuilder, size: Dim, number: Value) -> Value:
    """Return the partner of each row in a round; the row itself if it has none."""
    index, last = positions(op, size), op.Sub(op.dim(size), 1)
    players = _rounds(op, size)
    met = op.Mod(op.Sub(op.Mod(number, players), index), players)
    alone = op.Div(op.Mul(op.Mod(number, players), op.Add(players, 1)), 2)  # 2 i ≡ t
    even = op.Equal(op.Mod(op.dim(size), 2), 0)
    host = op.Where(op.Equal(met, index), op.Where(even, last, index), met)
    return op.Where(op.And(even, op.Equal(index, last)), op.Mod(alone, players), host)


def _rounds(op: OpBuilder, size: Dim) -> Value:
    """Return the number of rounds until all pairs have met, which is odd."""
    if isinstance(size, int):
        return op.const(max(size - 1 if size % 2 == 0 else size, 1))
    n = op.dim(size)
    return op.Sub(op.Add(n, op.Mod(n, 2)), 1)


def rotated(
    op: OpBuilder,
    state: list[Value],
    gram_of: Callable[[OpBuilder, list[Value]], Value],
    turn: Callable[[OpBuilder, list[Value], Value], list[Value]],
) -> list[Value]:
    """Return a state rotated until its Gram matrix is diagonal.

    Args:
        op: Creates the loop over the rounds.
        state: Matrices before the first round.
        gram_of: Returns the symmetric matrix to diagonalize.
        turn: Returns the state after rotations.
    """
    size = dims_of(gram_of(op, state))[-1]

    def step(op: OpBuilder, number: Value, state: list[Value]) -> list[Value]:
        gram = gram_of(op, state)
        return turn(op, state, rotations(op, gram, number))

    def unfinished(op: OpBuilder, state: list[Value]) -> Value:
        gram = gram_of(op, state)
        rank = len(dims_of(gram))
        elements = op.Abs(diagonal(op, gram))
        sizes = op.Sqrt(
            op.Mul(op.unsqueeze(elements, [rank - 1]), op.unsqueeze(elements, [rank - 2]))
        )
        ones = op.cast(identity(op, size, size), torch.bool)
        outside = op.Where(ones, op.like(gram, 0), op.Abs(gram))
        whole = op.ReduceMax(elements, [rank - 2], keepdims=1)
        # The bounds are about the spacing of float64, 2.2e-16, relative to the two diagonal
        # elements. If these are tiny, rounding of the largest elements bounds what rotations can
        # reach.
        least = op.Mul(op.unsqueeze(whole, [rank - 1]), 1e-16)
        far = op.Greater(outside, op.Max(op.Mul(sizes, 1e-15), least))
        return op.Greater(op.ReduceSum(op.cast(far, torch.int64), keepdims=0), 0)

    count = op.Mul(_rounds(op, size), SWEEPS)
    return repeat(op, count, state, step, unfinished)


def eigen(op: OpBuilder, a: Value) -> tuple[Value, Value]:
    """Return the eigenvalues of symmetric matrices, ascending, and the vectors as columns."""
    dims = dims_of(a)
    vectors = set_dims(op.expand(identity(op, dims[-1], dims[-1]), list(dims)), dims)

    def turn(op: OpBuilder, state: list[Value], j: Value) -> list[Value]:
        x, v = state
        return [op.MatMul(transposed(op, j), op.MatMul(x, j)), op.MatMul(v, j)]

    def itself(_: OpBuilder, state: list[Value]) -> Value:
        return state[0]

    x, v = rotated(op, [a, vectors], itself, turn)
    values, order = op.TopK(
        diagonal(op, x), op.shape([dims[-1]]), axis=-1, largest=0, sorted=1, _outputs=2
    )
    return set_dims(values, dims[:-1]), arranged(op, v, order)


def arranged(op: OpBuilder, x: Value, order: Value) -> Value:
    """Return matrices with their columns in another order."""
    dims = dims_of(x)
    index = op.Expand(op.Unsqueeze(order, [-2]), op.shape(dims))
    return set_dims(op.GatherElements(x, index, axis=len(dims) - 1), dims)
