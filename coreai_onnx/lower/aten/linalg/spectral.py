"""Eigenvalues of symmetric matrices and singular values, by Jacobi rotations; exponentials.

Square roots and polar factors follow from them.
"""

from __future__ import annotations

import math

import torch

from coreai_onnx.lower.aten.linalg.jacobi import arranged, eigen, rotated
from coreai_onnx.lower.aten.linalg.lu import smaller
from coreai_onnx.lower.aten.linalg.matrix_steps import diagonal, identity, transposed, wide
from coreai_onnx.lower.aten.linalg.qr import orthogonal, reflections
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import repeat
from coreai_onnx.lower.nodes.values import Value, dims_of, dtype_of, forbid_output, set_dims
from coreai_onnx.lower.walk.registry import lowers


@lowers("aten._linalg_eigh.default")
def eigh(
    op: OpBuilder, A: Value, UPLO: str = "L", *, compute_v: bool = True
) -> tuple[Value, Value]:
    """Eigenvalues, ascending, and eigenvectors; only one triangle is read.

    The signs of the vectors are arbitrary, so the vectors must not be an output of the program.
    """
    x = wide(op, A)
    dims = dims_of(x)
    if 0 in dims:
        none = op.like(x, 0)
        return op.expand(none, list(dims[:-1])), op.expand(none, list(dims) if compute_v else [0])
    kept = op.Trilu(x, upper=int(UPLO.upper() == "U"))
    across = op.cast(identity(op, dims[-1], dims[-1]), torch.bool)
    mirror = op.Where(across, op.like(x, 0), transposed(op, set_dims(kept, dims)))
    values, vectors = eigen(op, set_dims(op.Add(kept, mirror), dims))
    if not compute_v:
        return values, op.expand(op.like(A, 0), [0])
    vectors = op.cast(vectors, dtype_of(A))
    forbid_output(
        vectors,
        "aten._linalg_eigh.default: the signs of eigenvectors depend on the LAPACK that torch was "
        "built with",
        "choose the signs in the model, for example so that the largest element is positive",
    )
    return values, vectors


@lowers("aten.linalg_matrix_sqrth.default")
def matrix_sqrth(op: OpBuilder, self: Value) -> Value:
    """V diag(√λ) Vᴴ, of the eigenvalues λ and eigenvectors V of the lower triangle (torch 2.15).

    As in torch, a negative eigenvalue counts as zero.
    """
    values, vectors = eigh(op, wide(op, self))
    return _composed(op, vectors, op.Sqrt(op.Max(values, 0.0)), transposed(op, vectors))


# ---------------------------------------------------------------------- singular values
@lowers("aten._linalg_svd.default")
def svd(
    op: OpBuilder, A: Value, *, full_matrices: bool = False, compute_uv: bool = True
) -> tuple[Value, Value, Value]:
    """U diag(S) Vᴴ = A: columns rotated until they are orthogonal (Hestenes), S descending."""
    dims = dims_of(A)
    count = smaller(dims[-2], dims[-1])
    # Rotations act on columns, of which the transpose of a wide matrix has fewer.
    flat = count == dims[-2]
    if 0 in dims:
        return _nothing(op, A, full=full_matrices, vectors=compute_uv)
    x = wide(op, A)
    u, s, v = _tall(op, transposed(op, x) if flat else x, full=full_matrices)
    if not compute_uv:
        empty = op.expand(op.like(A, 0), [0])
        return empty, s, empty
    return (v, s, transposed(op, u)) if flat else (u, s, transposed(op, v))


def _nothing(op: OpBuilder, a: Value, *, full: bool, vectors: bool) -> tuple[Value, Value, Value]:
    """Return U, S and Vᴴ of matrices without elements; U and Vᴴ are identities if full."""
    *batch, rows, columns = dims_of(a)
    count = smaller(rows, columns)
    s = op.expand(op.like(a, 0), [*batch, count])
    if not vectors:
        return op.expand(op.like(a, 0), [0]), s, op.expand(op.like(a, 0), [0])
    tall, broad = (rows, rows if full else count), (columns if full else count, columns)
    u, vh = (op.expand(identity(op, *d), [*batch, *d]) for d in (tall, broad))
    return u, s, vh


def _tall(op: OpBuilder, a: Value, *, full: bool) -> tuple[Value, Value, Value]:
    """Return U, S and V of matrices with no fewer rows than columns.

    U is the Q factor of the orthogonal columns, times the signs of its diagonal R. It is
    therefore orthogonal even if singular values are zero.
    """
    dims = dims_of(a)
    square = (*dims[:-2], dims[-1], dims[-1])
    start = set_dims(op.expand(identity(op, dims[-1], dims[-1]), list(square)), square)

    def gram(op: OpBuilder, state: list[Value]) -> Value:
        return set_dims(op.MatMul(transposed(op, state[0]), state[0]), square)

    def turn(op: OpBuilder, state: list[Value], j: Value) -> list[Value]:
        return [op.MatMul(x, j) for x in state]

    x, v = rotated(op, [a, start], gram, turn)
    sizes = op.Sqrt(op.ReduceSum(op.Mul(x, x), [len(dims) - 2], keepdims=0))
    s, order = op.TopK(sizes, op.shape([dims[-1]]), axis=-1, largest=1, sorted=1, _outputs=2)
    x, v = arranged(op, x, order), arranged(op, v, order)
    vectors, taus = reflections(op, x)
    u = orthogonal(op, vectors, taus, dims[-2] if full else dims[-1])
    head = op.slice(vectors, len(dims) - 2, 0, dims[-1])
    signs = op.Where(op.Less(diagonal(op, set_dims(head, square)), 0.0), op.like(x, -1), 1.0)
    if full and dims[-2] != dims[-1]:
        # Columns of U beyond those of A have no sign.
        pads = op.shape([*[0] * (len(dims) - 1), *[0] * (len(dims) - 2), dims[-2] - dims[-1]])
        signs = op.Pad(signs, pads, op.like(x, 1))
    u = set_dims(op.Mul(u, op.Unsqueeze(signs, [-2])), dims_of(u))
    return u, set_dims(s, dims[:-2] + dims[-1:]), v


@lowers("aten.linalg_polar.default")
def polar(op: OpBuilder, A: Value) -> tuple[Value, Value]:
    """U Vᴴ and V diag(S) Vᴴ, of the singular values and vectors of A (torch 2.15).

    The first is unique only if no singular value is zero.
    """
    u, s, vh = svd(op, wide(op, A))
    return op.MatMul(u, vh), _composed(op, transposed(op, vh), s, vh)


def _composed(op: OpBuilder, left: Value, values: Value, right: Value) -> Value:
    """Return left @ diag(values) @ right."""
    result: Value = op.MatMul(op.Mul(left, op.Unsqueeze(values, [-2])), right)
    return result


@lowers("aten.linalg_pinv.atol_rtol_tensor")
def pinv(
    op: OpBuilder,
    self: Value,
    *,
    atol: Value | None = None,
    rtol: Value | None = None,
    hermitian: bool = False,
) -> Value:
    """V diag(1 / S) Uᴴ, where S > max(atol, rtol * max S); 0 in place of 1 / S elsewhere.

    By default rtol is ε * max(m, n), or 0 where atol is positive.
    """
    dims = dims_of(self)
    if hermitian:
        s, left = eigh(op, wide(op, self))
        v = left
    else:
        left, s, vh = svd(op, wide(op, self))
        v = transposed(op, vh)
    size = op.Abs(s)
    bound = op.ReduceMax(size, [len(dims) - 2], keepdims=1)
    least = op.like(s, 0) if atol is None else op.Unsqueeze(wide(op, atol), [-1])
    if rtol is not None:
        part = op.Unsqueeze(wide(op, rtol), [-1])
    else:
        longest = op.cast(op.Max(op.dim(dims[-2]), op.dim(dims[-1])), torch.float64)
        part = op.Mul(longest, torch.finfo(dtype_of(self)).eps)
        part = op.Where(op.Greater(least, 0.0), op.like(s, 0), part)
    kept = op.Greater(size, op.Max(least, op.Mul(part, bound)))
    inverse = op.Where(kept, op.Div(1.0, s), op.like(s, 0))
    return _composed(op, v, inverse, transposed(op, left))


# ---------------------------------------------------------------------- exponentials
_TERMS = 14
"""Number of Taylor terms for norms of at most 1/2; the remainder is below 1e-16."""


@lowers("aten.linalg_matrix_exp.default")
def matrix_exp(op: OpBuilder, self: Value) -> Value:
    """Σ Aᵏ / k!, of A / 2ˢ with a norm of at most 1/2, squared s times."""
    x = wide(op, self)
    dims = dims_of(x)
    rank = len(dims)
    norm = op.ReduceMax(op.ReduceSum(op.Abs(x), [rank - 2], keepdims=1), [rank - 1], keepdims=1)
    # Norms up to 1/2 need no halving, and a norm of 0 has no logarithm.
    log = op.Div(op.Log(op.Max(norm, 0.5)), math.log(2.0))
    halvings = op.Add(op.Ceil(log), 1.0)
    scaled = op.Div(x, op.Pow(op.like(x, 2), halvings))
    ones = identity(op, dims[-1], dims[-1])
    # Horner's scheme: one product per term.
    total = op.Add(op.Div(scaled, float(_TERMS)), ones)
    for k in range(_TERMS - 1, 0, -1):
        total = op.Add(op.Div(op.MatMul(scaled, total), float(k)), ones)
    most = op.cast(op.ReduceMax(halvings, keepdims=0), torch.int64)

    def step(op: OpBuilder, number: Value, state: list[Value]) -> list[Value]:
        # The loop runs for the largest norm of the batch; other matrices stop earlier.
        open_ = op.Less(wide(op, number), halvings)
        return [op.Where(open_, op.MatMul(state[0], state[0]), state[0])]

    return repeat(op, most, [set_dims(total, dims)], step)[0]
