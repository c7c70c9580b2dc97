"""Selections, slices and splits."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check, op_types

N = torch.export.Dim("n", min=4)
X = torch.randn(5, 6, 4)

CASES = {
    "select": lambda x: (x[1], x[:, -1], x.select(-1, 2)),
    "slice": lambda x: (x[1:3], x[:, ::2], x[..., -3:-1], x[7:], x[3:1], x[:100]),
    "narrow": lambda x: (x.narrow(0, 1, 2), x.narrow(1, -2, 2), x.narrow_copy(2, 0, 0)),
    "unbind": lambda x: x.unbind(1),
    "unbind_one": lambda x: x[:1].unbind(0),
    "split": lambda x: x.split(4, 1),
    "split_whole": lambda x: x.split(10, 1),
    "split_sizes": lambda x: x.split([1, 0, 5], 1),
    "split_with_sizes": lambda x: torch.split_with_sizes(x, [2, 2], -1),
    "unsafe_split": lambda x: torch.unsafe_split(x, 2, 0),
    "unsafe_split_with_sizes": lambda x: torch.unsafe_split_with_sizes(x, [2, 3], 0),
    "chunk": lambda x: x.chunk(4, 1),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2, 0),
    "tensor_split": lambda x: x.tensor_split(3, 0),
    "tensor_split_indices": lambda x: x.tensor_split((1, 4, 9, -2), 1),
    "hsplit": lambda x: x.hsplit(3),
    "vsplit": lambda x: x.vsplit([2]),
    "dsplit": lambda x: x.dsplit(2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_parts(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int16, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    x = (torch.randn(4, 6) > 0).to(dtype)
    check(lambda x: (*x.chunk(2, 1), x[1], x[:, 1::2], *x.unbind(0)), x)


def test_a_slice_of_everything_is_no_node() -> None:
    assert op_types(check(lambda x: x[:, :, 0:4][0:] + 1, X)) == ["Add"]


def test_equal_parts_are_one_split() -> None:
    assert op_types(check(lambda x: x.chunk(3, 1), X)) == ["Split"]


def test_parts_of_a_symbolic_axis() -> None:
    def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            x[-2:],
            x[n - 1],
            x.narrow(0, 1, n - 2),
            *x.split([1, n - 1]),
            x[n - 3 :],
            x[1::2],
            x[: n - 1],
        )

    others = [(torch.randn(n, 3),) for n in (4, 8, 21)]
    check(parts, torch.randn(5, 3), dynamic_shapes=({0: N},), others=others)


def test_chunks_of_a_symbolic_axis() -> None:
    check(
        lambda x: (*x.chunk(2, 0), *x.tensor_split(2, 0), *x.split(x.shape[0] // 2, 0)),
        torch.randn(8, 2),
        dynamic_shapes=({0: 2 * N},),
        others=[(torch.randn(14, 2),)],
    )


def test_a_symbolic_index() -> None:
    check(
        lambda x, y: (x[y.shape[0]], x[y.shape[0] :], x[: -y.shape[0]]),
        X,
        torch.zeros(3),
        dynamic_shapes=(None, {0: torch.export.Dim("k", min=2, max=3)}),
        others=[(X, torch.zeros(2))],
    )


def test_empty() -> None:
    check(lambda x: (*x.chunk(3, 1), x[:, 1:], x[0], *x.split(2, 0)), torch.zeros(4, 0))
