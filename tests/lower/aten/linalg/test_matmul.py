"""Lowerings of matrix products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types

BATCH = torch.export.Dim("batch")


def test_linear_of_a_matrix_is_one_gemm() -> None:
    model = check(F.linear, torch.randn(4, 3), torch.randn(5, 3), torch.randn(5))
    assert op_types(model) == ["Gemm"]


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (0, 3), (2, 0, 3), (2, 2, 4, 3)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_linear(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    x, w, b = (torch.randn(s).mul(3).to(dtype) for s in (shape, (5, 3), (5,)))
    check(F.linear, x, w, b if bias else None)


def test_linear_of_a_vector_weight() -> None:
    check(F.linear, torch.randn(4, 3), torch.randn(3))
    check(F.linear, torch.randn(2, 4, 3), torch.randn(3), torch.randn(()))


def test_linear_with_no_features_gives_the_bias() -> None:
    check(F.linear, torch.randn(4, 0), torch.randn(5, 0), torch.randn(5))


@pytest.mark.parametrize("decompose", [False, True])
def test_linear_in_a_module_with_a_dynamic_batch(decompose: bool) -> None:
    check(
        torch.nn.Linear(3, 5),
        torch.randn(2, 7, 3),
        dynamic_shapes=({0: BATCH},),
        others=[(torch.randn(6, 7, 3),)],
        decompose=decompose,
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 1, 2, 3), (6, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((2, 0), (0, 4)),
        ((0,), (0,)),
        ((0, 2, 3), (0, 3, 4)),
    ],
)
@pytest.mark.parametrize("decompose", [False, True])
def test_matmul_of_any_ranks(a: tuple[int, ...], b: tuple[int, ...], decompose: bool) -> None:
    check(torch.matmul, torch.randn(a), torch.randn(b), decompose=decompose)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_products_wrap_around(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    a = torch.randint(info.min // 2, info.max // 2, (3, 4), dtype=dtype)
    b = torch.randint(info.min // 2, info.max // 2, (4, 2), dtype=dtype)
    check(torch.mm, a, b)


def test_int64_products_are_exact_beyond_doubles() -> None:
    check(torch.mm, torch.tensor([[2**53 + 1, 1]]), torch.tensor([[1], [2**53]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats(dtype: torch.dtype) -> None:
    check(torch.bmm, torch.randn(2, 3, 4).to(dtype), torch.randn(2, 4, 5).to(dtype))


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2.0), (0, 1.5), (2, 1)])
@pytest.mark.parametrize("shape", [(3, 5), (5,), (3, 1), ()])
def test_addmm(beta: float, alpha: float, shape: tuple[int, ...]) -> None:
    args = torch.randn(shape), torch.randn(3, 4), torch.randn(4, 5)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=beta, alpha=alpha), *args)


def test_addmm_with_beta_zero_ignores_nan() -> None:
    args = torch.full((3, 5), torch.nan), torch.randn(3, 4), torch.randn(4, 5)
    check(lambda c, a, b: torch.addmm(c, a, b, beta=0), *args)


def test_addmm_of_integers_is_exact() -> None:
    args = torch.tensor([[2**53]]), torch.tensor([[2**53 + 1]]), torch.tensor([[1]])
    check(lambda c, a, b: torch.addmm(c, a, b, beta=3, alpha=2), *args)


def test_addmm_over_no_products_gives_the_addend() -> None:
    check(
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5),
        torch.randn(5),
        torch.randn(3, 0),
        torch.randn(0, 5),
    )


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2.0), (0, 1.5)])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.baddbmm, ((2, 3, 5), (2, 3, 4), (2, 4, 5))),
        (torch.baddbmm, ((5,), (2, 3, 4), (2, 4, 5))),
        (torch.addbmm, ((3, 5), (2, 3, 4), (2, 4, 5))),
        (torch.addmv, ((3,), (3, 4), (4,))),
        (torch.addr, ((3, 4), (3,), (4,))),
    ],
)
@pytest.mark.parametrize("decompose", [False, True])
def test_products_with_an_addend(function, shapes, beta, alpha, decompose) -> None:  # type: ignore[no-untyped-def]
    check(
        lambda *x: function(*x, beta=beta, alpha=alpha),
        *(torch.randn(s) for s in shapes),
        decompose=decompose,
    )


def test_addr_of_booleans() -> None:
    x, a, b = (torch.randint(0, 2, s).bool() for s in ((3, 4), (3,), (4,)))
    check(torch.addr, x, a, b)
    check(lambda x, a, b: torch.addr(x, a, b, beta=False), x, a, b)
    check(lambda x, a, b: torch.addr(x, a, b, alpha=False), x, a, b)


def test_outer_and_dot() -> None:
    check(torch.outer, torch.randn(3), torch.randn(4))
    check(torch.outer, torch.tensor([True, False]), torch.tensor([True, True, False]))
    check(torch.dot, torch.randn(3), torch.randn(3))
    check(torch.vdot, torch.randn(3), torch.randn(3))
    check(torch.mv, torch.randn(3, 4), torch.randn(4))


def test_chain_matmul() -> None:
    check(torch.linalg.multi_dot, [torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 2)])


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
@pytest.mark.parametrize("decompose", [False, True])
def test_bilinear(lead: tuple[int, ...], decompose: bool) -> None:
    args = torch.randn(*lead, 3), torch.randn(*lead, 5), torch.randn(6, 3, 5), torch.randn(6)
    check(F.bilinear, *args, decompose=decompose)


def test_einsum() -> None:
    check(
        lambda a, b: torch.einsum("bij,bjk->bik", a, b), torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    )
    check(lambda a: torch.einsum("...ii->...i", a), torch.randn(2, 3, 3))
    check(
        lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b),
        torch.randn(2, 3, 4, 5),
        torch.randn(2, 3, 6, 5),
        dynamic_shapes=({0: BATCH}, {0: BATCH}),
        others=[(torch.randn(5, 3, 4, 5), torch.randn(5, 3, 6, 5))],
    )


def test_matmul_with_a_dynamic_batch() -> None:
    check(
        torch.matmul,
        torch.randn(2, 3, 4),
        torch.randn(4, 5),
        dynamic_shapes=({0: BATCH}, None),
        others=[(torch.randn(7, 3, 4), torch.randn(4, 5))],
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_products_of_bytes_are_exact(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-128, 128, (20, 2048), dtype=torch.int8, generator=generator)
    b = torch.randint(-128, 128, (2048, 8), dtype=torch.int8, generator=generator)
    a[0], b[:, 0] = -128, -128
    a = a.to(dtype)
    model = check(torch._int_mm, a, b)
    assert "MatMulInteger" in op_types(model)
