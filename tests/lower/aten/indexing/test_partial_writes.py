"""Lowerings of a tensor with one part of it replaced."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return small whole numbers."""
    return torch.randint(0, 5, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_select(dtype: torch.dtype) -> None:
    for dim, index in ((0, 0), (0, 2), (0, -1), (-1, 1)):
        src = values(3, dtype=dtype) if dim == 0 else values(4, dtype=dtype)
        x = values(4, 3, dtype=dtype)
        check(lambda x, s, d=dim, i=index: x.select_scatter(s, d, i), x, src)
    check(lambda x, s: x.select_scatter(s, 0, 1), values(4, dtype=dtype), values(dtype=dtype))


@pytest.mark.parametrize(
    ("start", "end", "step", "length"),
    [
        (None, None, 1, 6),
        (0, 2, 1, 2),
        (2, None, 1, 4),
        (-3, -1, 1, 2),
        (1, 100, 1, 5),
        (1, 6, 2, 3),
        (0, 5, 3, 2),
        (4, 2, 1, 0),
        (9, 12, 1, 0),
    ],
)
@pytest.mark.parametrize("dim", [0, 1])
def test_slice(start: int | None, end: int | None, step: int, length: int, dim: int) -> None:
    src = values(length, 6) if dim == 0 else values(6, length)
    check(lambda x, s: torch.slice_scatter(x, s, dim, start, end, step), values(6, 6), src)


@pytest.mark.parametrize("offset", [0, 1, -2])
def test_diagonal(offset: int) -> None:
    x = values(4, 5)
    check(lambda x, s: x.diagonal_scatter(s, offset), x, torch.diagonal(x, offset) + 1)
    x = values(2, 4, 3, 5)
    src = torch.diagonal(x, offset, 1, -1).contiguous() + 1
    check(lambda x, s: x.diagonal_scatter(s, offset, 1, -1), x, src)


def test_as_strided() -> None:
    check(lambda x, s: x.as_strided_scatter(s, (2, 2), (3, 1), 1), values(3, 4), values(2, 2))
    check(lambda x, s: x.as_strided_scatter(s, (), (), 5), values(3, 4), values())


@pytest.mark.parametrize("step", [1, 2])
def test_writing_through_a_slice(step: int) -> None:
    def write(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        copy = cache.clone()
        copy[:, 1 : 1 + 2 * step : step] = new
        return copy

    batch = torch.export.Dim("batch")
    check(
        write,
        values(2, 6, 3),
        values(2, 2, 3),
        dynamic_shapes=({0: batch}, {0: batch}),
        others=[(values(5, 6, 3), values(5, 2, 3))],
    )


def test_writing_the_last_rows_whose_number_is_dynamic() -> None:
    def write(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        copy = cache.clone()
        copy[-new.shape[0] :] = new
        return copy

    length, count = torch.export.Dim("length", min=8), torch.export.Dim("count", min=2, max=8)
    check(
        write,
        values(9, 3),
        values(4, 3),
        dynamic_shapes=({0: length}, {0: count}),
        others=[(values(12, 3), values(2, 3))],
    )


def test_writing_at_the_end_of_a_dynamic_axis() -> None:
    length = torch.export.Dim("length", min=4)

    def write(x: torch.Tensor) -> torch.Tensor:
        copy = x.clone()
        copy[-2:] = 0
        copy[0] = 1
        copy[-1] = 2
        return copy

    check(write, values(5, 3), dynamic_shapes=({0: length},), others=[(values(8, 3),)])
