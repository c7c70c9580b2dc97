"""Lowerings of reads and writes by index tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lower.checking import check, op_types

BATCH = torch.export.Dim("batch")
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values that fit any dtype."""
    return torch.randint(0, 9, shape).to(dtype) if dtype != torch.bool else torch.rand(shape) > 0.5


def rows(*values: Any) -> torch.Tensor:
    return torch.tensor(values)


READS = {
    "one": lambda x, i, j, m: x[i],
    "one behind": lambda x, i, j, m: x[:, :, i],
    "scalar": lambda x, i, j, m: torch.ops.aten.index.Tensor(x, [i[0]]),
    "two": lambda x, i, j, m: x[i, j],
    "two behind": lambda x, i, j, m: x[:, i, j],
    "two apart": lambda x, i, j, m: x[i, :, j],
    "three": lambda x, i, j, m: x[i, j, i],
    "broadcast": lambda x, i, j, m: x[i[:, None], j],
    "broadcast apart": lambda x, i, j, m: x[i[:, None], :, j],
    "negative": lambda x, i, j, m: x[-i - 1, :, -j - 1],
    "mask": lambda x, i, j, m: x[x > 3],
    "leading mask": lambda x, i, j, m: x[m],
    "mask behind": lambda x, i, j, m: x[:, m[0]],
    "matrix mask behind": lambda x, i, j, m: x[:, m.T],
    "mask and position": lambda x, i, j, m: x[m[:, 0], 1],
    "mask and index": lambda x, i, j, m: x[m[:, 0], :, j[0:1]],
    "index and mask": lambda x, i, j, m: x[i[0:1], m[0]],
    "empty": lambda x, i, j, m: x[i[:0], j[:0]],
    "new axis": lambda x, i, j, m: x[None, i],
}


@pytest.mark.parametrize("case", READS)
def test_reads(case: str) -> None:
    x, i, j = tensor(3, 4, 3), rows(0, 2, 1, 1), rows(1, 0, 2, 2)
    m = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 1]]).bool()
    check(READS[case], x, i, j, m)
    if case == "one":
        assert op_types(check(READS[case], x, i, j, m)) == ["Gather"]


def test_reads_by_a_mask_of_no_true_element() -> None:
    check(lambda x, m: x[m], tensor(2, 3), torch.zeros(2, 3).bool())
    check(lambda x, m: x[:, m], tensor(2, 3), torch.zeros(3).bool())


@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_of_every_dtype(dtype: torch.dtype) -> None:
    x, i, j = tensor(3, 4, 3, dtype=dtype), rows(0, 2, 1, 1), rows(1, 0, 2, 2)
    check(lambda x, i, j: (x[i], x[i, :, j]), x, i, j)
    check(lambda x, m: x[m], x, x.to(torch.bool))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_index_dtypes(dtype: torch.dtype) -> None:
    i = rows(0, 2, -1).to(dtype)
    check(lambda x, i: (x[i], x[i, i], x[i, :, i]), tensor(3, 4, 3), i)


def test_reads_with_dynamic_sizes() -> None:
    dynamic = ({0: BATCH}, {0: torch.export.Dim("rows")})
    for read in (lambda x, i: x[i], lambda x, i: x[i, :, i], lambda x, i: x[:, i, i]):
        check(
            read,
            tensor(3, 4, 3),
            rows(0, 2, 1, 1),
            dynamic_shapes=dynamic,
            others=[(tensor(5, 4, 3), rows(0, 2))],
        )


def test_index_select() -> None:
    check(lambda x, i: torch.index_select(x, 1, i), tensor(2, 3), rows(2, 0, 0))
    check(lambda x, i: torch.index_select(x, -1, i), tensor(2, 3), torch.tensor(1))
    check(lambda x, i: torch.index_select(x, 0, i), tensor(), rows(0))


def test_gather() -> None:
    check(lambda x, i: torch.gather(x, 1, i), tensor(2, 3), rows([2, 0, 0, 1], [0, 1, 1, 2]))
    check(lambda x, i: torch.gather(x, 0, i), tensor(4, 3), rows([2, 0]))
    check(lambda x, i: torch.gather(x, 0, i), tensor(), torch.tensor(0))
    check(lambda x, i: torch.gather(x, 0, i), tensor(), rows(0))
    check(lambda x, i: torch.gather(x, 0, i), tensor(3), torch.tensor(2))
    check(lambda x, i: torch.gather(x, 0, i), tensor(3, 2), torch.zeros(0, dtype=torch.int64))


def test_take() -> None:
    check(torch.take, tensor(2, 3), rows([5, 0], [-1, -6]))
    check(torch.take, tensor(), torch.tensor(0))
    check(torch.take, tensor(2, 3), torch.zeros(0, 2, dtype=torch.int64))


def test_take_along_dim() -> None:
    check(lambda x, i: torch.take_along_dim(x, i, 1), tensor(2, 3), rows([2, 0], [1, 1]))
    check(lambda x, i: torch.take_along_dim(x, i, 1), tensor(2, 3), rows([2, 0]))
    check(lambda x, i: torch.take_along_dim(x, i, -1), tensor(1, 3), rows([2, 0], [1, 1]))
    check(torch.take_along_dim, tensor(2, 3), rows([5, 0], [1, 1]))


WRITES = {
    "one": ((slice(0, 3),), (4, 3)),
    "one row": ((slice(0, 3),), ()),
    "two": (("i", "j"), (3, 3)),
    "two broadcast": (("i", "j"), (3,)),
    "behind": ((None, "j"), (3, 3, 3)),
    "behind narrow": ((None, "j"), (3, 1, 3)),
    "apart": (("i", None, "j"), (3, 4)),
    "apart narrow": (("i", None, "j"), (3, 1)),
    "all": (("i", "j", "i"), (3,)),
    "all with one": (("i", "j", "i"), ()),
    "outer": (("c", "j"), (3, 3, 3)),
}


@pytest.mark.parametrize("case", WRITES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_writes(case: str, accumulate: bool) -> None:
    places, shape = WRITES[case]
    i = rows(0, 2, 1)
    named = {"i": i, "j": rows(1, 0, 2), "c": i[:, None]}
    indices = [named[p] if isinstance(p, str) else None if p is None else i for p in places]
    if case == "one":
        shape = (3, 4, 3)
    x, values = tensor(3, 4, 3), tensor(*shape)
    check(
        lambda x, v, *i: torch.ops.aten.index_put.default(x, i, v, accumulate),
        x,
        values,
        *indices,
    )


def test_accumulation_adds_every_occurrence() -> None:
    i = rows(0, 2, 0, 0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32):
        check(
            lambda x, i, v: x.index_put((i,), v, accumulate=True),
            tensor(3, 2, dtype=dtype),
            i,
            tensor(4, 2, dtype=dtype),
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_writes_of_every_dtype(dtype: torch.dtype, accumulate: bool) -> None:
    check(
        lambda x, i, v: x.index_put((i,), v, accumulate=accumulate),
        tensor(3, 2, dtype=dtype),
        rows(2, -3),
        tensor(2, 2, dtype=dtype),
    )
    check(
        lambda x, m, v: x.index_put((m,), v, accumulate=accumulate),
        tensor(3, 2, dtype=dtype),
        torch.tensor([True, False, True]),
        tensor(1, dtype=dtype),
    )


@pytest.mark.parametrize("accumulate", [False, True])
def test_writes_under_a_mask(accumulate: bool) -> None:
    x, m = tensor(3, 4, 2), torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 1]]).bool()

    def put(x: Any, v: Any, *i: Any) -> Any:
        return torch.ops.aten.index_put.default(x, i, v, accumulate)

    model = check(put, x, torch.tensor(7.0), m)
    assert "NonZero" not in op_types(model)
    check(put, x, tensor(2), m)
    check(put, x, tensor(1, 2), m)
    check(put, x, tensor(7, 2), m)
    check(
        put,
        x,
        tensor(3, 1, 1),
        None,
        m[0],
    )
    check(put, x, tensor(3, 3, 2), None, m[0])
    check(put, x, tensor(7), m, rows(1))


def test_writes_nothing() -> None:
    check(
        lambda x, i, v: x.index_put((i,), v),
        tensor(3, 2),
        torch.zeros(0, dtype=torch.int64),
        tensor(0, 2),
    )


def test_writes_with_dynamic_sizes() -> None:
    check(
        lambda x, i, v: x.index_put((i, i), v),
        tensor(3, 4, 2),
        rows(0, 2),
        tensor(2, 2),
        dynamic_shapes=({0: BATCH}, {0: torch.export.Dim("rows")}, {0: torch.export.Dim("rows")}),
        others=[(tensor(5, 4, 2), rows(0, 1, 2), tensor(3, 2))],
    )


def test_mutation_of_a_copy() -> None:
    def zero(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[m] = 0
        return y

    check(zero, tensor(3, 2), torch.tensor([True, False, True]))


def test_put() -> None:
    for accumulate in (False, True):
        check(
            lambda x, i, s, a=accumulate: x.put(i, s, a),
            tensor(2, 3),
            rows([5, 0], [1, -4]),
            tensor(2, 2),
        )
        check(lambda x, i, s, a=accumulate: x.put(i, s, a), tensor(), torch.tensor(0), tensor())


def test_masked_reads_and_writes_take_any_index() -> None:
    x, i, m = tensor(3, 4), rows(5, 1, -7), torch.tensor([False, True, False])
    unsafe = torch.ops.aten
    check(lambda x, m, i: unsafe._unsafe_masked_index(x, m, [None, i], 7), x, m, i)
    check(
        lambda x, m, i, v: unsafe._unsafe_masked_index_put_accumulate(x, m, [None, i], v),
        x,
        m,
        i,
        tensor(3, 3),
    )
