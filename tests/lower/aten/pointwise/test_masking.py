"""Lowerings of masks and of nonzero."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

MASK = torch.tensor([[True, False, True], [False, False, True]])
BATCH = torch.export.Dim("batch")


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]
)
def test_masked_fill(dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, (2, 3)).to(dtype)
    check(lambda x, m: x.masked_fill(m, 1), x, MASK)
    check(lambda x, m, v: x.masked_fill(m, v), x, MASK, torch.tensor(1, dtype=dtype))


def test_masked_fill_broadcasts_and_takes_infinities() -> None:
    for value in (-torch.inf, torch.nan, -0.0, torch.finfo(torch.float32).min):
        check(lambda x, m, v=value: x.masked_fill(m, v), torch.randn(4, 2, 3), MASK)
    check(lambda x, m: x.masked_fill(m, 1.5), torch.randn(3), MASK[0, 0])
    check(lambda x, m: x.masked_fill(m, 2**53 + 1), torch.tensor([2**53 + 1, 0]), MASK[0, :2])


def test_masked_fill_with_a_dynamic_batch() -> None:
    check(
        lambda x, m: x.masked_fill(m, 0.0),
        torch.randn(2, 3),
        MASK,
        dynamic_shapes=({0: BATCH}, {0: BATCH}),
        others=[(torch.randn(4, 3), torch.rand(4, 3) > 0.5)],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_masked_select(dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, (2, 3)).to(dtype)
    check(torch.masked_select, x, MASK, others=[(x, torch.zeros(2, 3).bool())])
    check(torch.masked_select, x[0], MASK)
    check(torch.masked_select, x, MASK[:, :1])
    check(torch.masked_select, x[0, 0], MASK[0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_masked_scatter(dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, (2, 3)).to(dtype)
    source = torch.randint(0, 9, (3, 3)).to(dtype)
    check(torch.masked_scatter, x, MASK, source, others=[(x, ~MASK, source)])
    check(torch.masked_scatter, x, MASK[0], source)
    check(torch.masked_scatter, x, torch.zeros(2, 3).bool(), source[:0])
    check(torch.masked_scatter, x[0, 0], MASK[0, 0], source)
    check(torch.masked_scatter, x[0, 0], MASK[0, 1], source)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]
)
def test_nonzero(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (2, 3)).to(dtype)
    check(torch.nonzero, x, others=[(torch.zeros_like(x),)])
    check(torch.nonzero, x[0])
    check(torch.nonzero, torch.ones((), dtype=dtype), others=[(torch.zeros((), dtype=dtype),)])
    check(torch.nonzero, x[:0])


def test_nonzero_of_nan_and_negative_zero() -> None:
    check(torch.nonzero, torch.tensor([torch.nan, -0.0, 0.0, -torch.inf]))


def test_nonzero_static() -> None:
    for size in (0, 2, 9):
        check(lambda x, n=size: torch.nonzero_static(x, size=n), MASK)
        check(lambda x, n=size: torch.nonzero_static(x, size=n, fill_value=5), MASK[0])
    check(lambda x: torch.nonzero_static(x, size=2), MASK[0, 0])


def test_one_element_under_a_mask_of_several() -> None:
    mask = torch.tensor([[True, False, True], [False, True, False]])
    check(torch.masked_scatter, torch.tensor(7), mask, torch.arange(6).view(2, 3))
