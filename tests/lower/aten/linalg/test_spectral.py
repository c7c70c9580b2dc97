"""Eigenvalues, singular values and exponentials: even and odd sizes, batches, rank deficits.

Vectors are compared by what they make: their signs are anyone's choice.
"""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.aten.linalg.spectral import matrix_sqrth, polar
from tests.lower.building import Building
from tests.lower.checking import check
from tests.support.tolerances import assert_close

_SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 5, 5, generator=_SEED)
TALL = torch.randn(2, 6, 3, generator=_SEED)


def _projected(a: torch.Tensor, uplo: str = "L") -> tuple[torch.Tensor, ...]:
    values, vectors = torch.linalg.eigh(a, uplo)
    return values, (vectors * values.unsqueeze(-2)) @ vectors.mT, vectors.mT @ vectors


def _remade(a: torch.Tensor, full: bool) -> tuple[torch.Tensor, ...]:
    u, s, v = torch.linalg.svd(a, full_matrices=full)
    k = s.shape[-1]
    return s, (u[..., :k] * s.unsqueeze(-2)) @ v[..., :k, :], u.mT @ u, v @ v.mT


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_eigenvalues(size: int) -> None:
    a = X[:, :size, :size] + X[:, :size, :size].mT
    check(_projected, a)
    check(torch.linalg.eigvalsh, a[0].double(), opset=18)


def test_one_triangle_is_read() -> None:
    for uplo in ("L", "U"):
        check(lambda a, u=uplo: _projected(a, u), X)


def test_diagonal_already() -> None:
    check(_projected, torch.diag(torch.tensor([3.0, 1.0, 1.0, -2.0])))


@pytest.mark.parametrize("full", [False, True])
def test_singular_values(full: bool) -> None:
    for a in (TALL, TALL.mT.contiguous(), X, TALL[0].double()):
        check(lambda a: _remade(a, full), a)


def test_missing_rank() -> None:
    column = torch.arange(1.0, 5.0)[:, None]
    check(lambda a: _remade(a, True), column @ column[:3].mT)
    check(torch.linalg.svdvals, torch.zeros(3, 3))


def test_what_follows() -> None:
    check(torch.linalg.pinv, TALL)
    check(torch.linalg.matrix_rank, TALL)
    check(torch.linalg.cond, X)
    check(lambda a: torch.linalg.matrix_norm(a, "nuc"), X)


def test_pseudoinverse() -> None:
    column = torch.arange(1.0, 5.0)[:, None]
    check(torch.linalg.pinv, column @ column[:3].mT)
    check(lambda a: torch.linalg.pinv(a @ a.mT + 5 * torch.eye(5), hermitian=True), X)
    check(lambda a: torch.linalg.pinv(a, atol=1.5), TALL)
    check(lambda a: torch.linalg.pinv(a, rtol=0.9), TALL)


def test_exponentials() -> None:
    check(torch.linalg.matrix_exp, X.double() * 2)
    check(torch.linalg.matrix_exp, torch.stack([X[0] * 0, X[1]]))


def test_any_size() -> None:
    n = torch.export.Dim("n", min=2)
    check(
        torch.linalg.eigvalsh,
        X,
        dynamic_shapes=({1: n, 2: n},),
        others=[(X[:, :4, :4],), (X[:, :2, :2],)],
    )


def test_no_elements() -> None:
    check(torch.linalg.eigh, torch.zeros(0, 0))
    check(torch.linalg.svd, torch.zeros(3, 0))
    check(torch.linalg.pinv, torch.zeros(0, 3, 3))
    check(lambda a: torch.linalg.svd(a, full_matrices=False), torch.zeros(2, 0, 3))


def test_powers_and_ranks() -> None:
    check(lambda a: torch.linalg.matrix_power(a, 5), X)
    check(lambda a: torch.linalg.matrix_rank(a, atol=torch.tensor(1.0)), TALL)


def test_vectors_of_any_sign_are_no_output() -> None:
    with pytest.raises(LoweringError, match="signs of eigenvectors"):
        check(torch.linalg.eigh, torch.eye(3))
    check(lambda a: torch.linalg.eigh(a)[0], torch.eye(3))


# These two ops are new in torch 2.15; their lowerings are called by hand in any version.
@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
def test_square_roots(batch: tuple[int, ...]) -> None:
    root = (X @ X.mT)[0].double().expand(*batch, 5, 5)
    graph = Building()
    a = graph.input("a", torch.float64, root.shape)
    (found,) = graph.run([matrix_sqrth(graph.op, a)], [(root @ root).tril()])
    assert_close(found, root)


def test_a_negative_eigenvalue_counts_as_zero() -> None:
    graph = Building()
    a = graph.input("a", torch.float64, (2, 2))
    given = torch.tensor([[4.0, 9.0], [0.0, -1.0]]).double()
    (found,) = graph.run([matrix_sqrth(graph.op, a)], [given])
    assert_close(found, torch.tensor([[2.0, 0.0], [0.0, 0.0]]).double())


@pytest.mark.parametrize(
    "a", [TALL, X, TALL[0], TALL[:0], TALL[..., :0]], ids=lambda a: str(a.shape)
)
def test_polar_factors(a: torch.Tensor) -> None:
    graph = Building()
    value = graph.input("a", torch.float64, a.shape)
    unitary, positive = graph.run(polar(graph.op, value), [a.double()])
    u, s, vh = torch.linalg.svd(a.double(), full_matrices=False)
    assert_close(unitary, u @ vh)
    assert_close(positive, vh.mT @ torch.diag_embed(s) @ vh)
