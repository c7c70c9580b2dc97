"""Lowerings of scatters and of reductions where they meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lower.checking import check

INDEX = torch.tensor([[0, 2, 1, 0], [1, 1, 1, 0]])
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8]
REDUCES = ["sum", "prod", "mean", "amax", "amin"]
ROWS = torch.tensor([0, 2, 0, 1])


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return small whole numbers, some of them negative."""
    return torch.randint(-4, 5, shape).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_scatter(dtype: torch.dtype) -> None:
    x, index = values(3, 5, dtype=dtype), torch.tensor([[0, 2, 1, 0], [1, 0, 2, 2]])
    check(lambda x, i, s: x.scatter(0, i, s), x, index, values(2, 5, dtype=dtype))
    check(lambda x, i: x.scatter(-2, i, 1), x, index)


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("dtype", DTYPES)
def test_old_reductions(dtype: torch.dtype) -> None:
    x, s = values(3, 4, dtype=dtype), values(2, 4, dtype=dtype)
    for reduce in ("add", "multiply"):
        check(lambda x, i, s, r=reduce: x.scatter(0, i, s, reduce=r), x, INDEX, s)
        check(lambda x, i, r=reduce: x.scatter(0, i, 3, reduce=r), x, INDEX)
    check(lambda x, i, s: x.scatter_add(0, i, s), x, INDEX, s)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    def run(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, i, s, reduce, include_self=include_self)

    check(run, values(3, 4, dtype=dtype), INDEX, values(2, 4, dtype=dtype))


@pytest.mark.parametrize("reduce", REDUCES)
def test_without_axes(reduce: str) -> None:
    x, i, s = torch.tensor(2.0), torch.tensor(0), torch.tensor(5.0)
    check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce), x, i, s)
    check(lambda x, i, s: x.scatter(0, i, s), x, i, s)
    check(lambda x, i: x.scatter(0, i, 3.0), x, i)
    check(lambda x, i, s: x.index_add(0, i, s), x, i, s)
    check(lambda x, i, s: x.index_copy(0, i, s), x, i, s)
    check(lambda x, i: x.index_fill(0, i, 1.0), x, i)


def test_an_empty_index_changes_nothing() -> None:
    empty = torch.zeros(0, 4, dtype=torch.int64)
    check(lambda x, i: x.scatter(0, i, 1.0), values(3, 4), empty)
    check(lambda x, i, s: x.scatter_add(0, i, s), values(3, 4), empty, values(2, 4))
    check(lambda x, i, s: x.index_add(0, i, s), values(3, 4), empty[:, 0], values(0, 4))


def test_maxima_of_nan() -> None:
    s = torch.tensor([[1.0, torch.nan, 3.0, -torch.inf], [torch.nan, 0.0, torch.inf, 2.0]])
    for reduce in ("amax", "amin", "sum", "prod"):
        for self in (True, False):
            check(
                lambda x, i, s, r=reduce, f=self: x.scatter_reduce(0, i, s, r, include_self=f),
                values(3, 4),
                INDEX,
                s,
            )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@pytest.mark.parametrize("dim", [0, -1])
def test_rows(dtype: torch.dtype, dim: int) -> None:
    x = values(3, 3, dtype=dtype)
    s = values(4, 3, dtype=dtype) if dim == 0 else values(3, 4, dtype=dtype)
    check(lambda x, i, s: x.index_add(dim, i, s), x, ROWS, s)
    check(lambda x, i, s: x.index_copy(dim, i, s), x, ROWS[1:], s.narrow(dim, 0, 3))
    check(lambda x, i: x.index_fill(dim, i, 1), x, ROWS)
    check(lambda x, i, v: x.index_fill(dim, i, v), x, ROWS, torch.tensor(1, dtype=dtype))
    if dtype != torch.bool:
        check(lambda x, i, s: x.index_add(dim, i, s, alpha=2), x, ROWS, s)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
def test_index_reduce(reduce: str, include_self: bool, dim: int) -> None:
    s = values(4, 3) if dim == 0 else values(3, 4)
    check(
        lambda x, i, s: x.index_reduce(dim, i, s, reduce, include_self=include_self),
        values(3, 3),
        ROWS,
        s,
    )


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "max", "min"])
@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_segment_reduce(reduce: str, initial: float | None, dtype: torch.dtype) -> None:
    def run(x: Any, n: Any) -> Any:
        return torch.segment_reduce(x, reduce, lengths=n, initial=initial)

    check(run, values(6, 2, dtype=dtype), torch.tensor([1, 0, 3, 2]))
    check(
        lambda x, o: torch.segment_reduce(x, reduce, offsets=o, initial=initial),
        values(6, dtype=dtype),
        torch.tensor([0, 1, 1, 4, 6]),
    )
    check(
        lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=1, initial=initial),
        values(2, 4, 3, dtype=dtype),
        torch.tensor([[1, 3], [4, 0]]),
    )


def test_dynamic_sizes() -> None:
    rows, batch = torch.export.Dim("rows"), torch.export.Dim("batch", min=3)
    check(
        lambda x, i, s: (x.index_add(0, i, s), x.index_copy(0, i, s)),
        values(4, 3),
        torch.tensor([0, 2]),
        values(2, 3),
        dynamic_shapes=({0: batch}, {0: rows}, {0: rows}),
        others=[(values(5, 3), torch.tensor([4, 0, 1]), values(3, 3))],
    )
    check(
        lambda x, i, s: x.scatter_reduce(0, i, s, "mean"),
        values(4, 3),
        torch.tensor([[0, 2, 1]]),
        values(1, 3),
        dynamic_shapes=({0: batch}, None, None),
        others=[(values(5, 3), torch.tensor([[4, 0, 1]]), values(1, 3))],
    )


def test_what_lies_behind_the_last_segment_is_left_out() -> None:
    offsets = torch.tensor([0, 2, 3])
    check(
        lambda x, o: torch.segment_reduce(x, "sum", offsets=o, unsafe=True),
        torch.arange(5.0),
        offsets,
    )
