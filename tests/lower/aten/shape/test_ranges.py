"""Ranges, identity matrices and triangles."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

X = torch.randn(4, 5)
N = torch.export.Dim("n", min=3)

CASES = {
    "arange": lambda x: (torch.arange(5), torch.arange(2, 7), torch.arange(7, 1, -2)),
    "arange_float": lambda x: (torch.arange(0.5, 3, 0.3), torch.arange(3.0)),
    "arange_dtype": lambda x: (
        torch.arange(5, dtype=torch.float16),
        torch.arange(1, 4, dtype=torch.int32),
    ),
    "arange_truncated": lambda x: torch.arange(0.5, 9.7, 1.5, dtype=torch.int64),
    "arange_large": lambda x: torch.arange(10, 20000, 3, dtype=torch.int32),
    "linspace": lambda x: (torch.linspace(0, 1, 7), torch.linspace(3, -3, 4, dtype=torch.int64)),
    "logspace": lambda x: torch.logspace(0, 2, 5, base=2),
    "eye": lambda x: (torch.eye(3), torch.eye(2, 4, dtype=torch.bool), torch.eye(100)),
    "tril": lambda x: (x.tril(), x.tril(-1), x.tril(9), x.tril(-9)),
    "triu": lambda x: (x.triu(), x.triu(2), x[None].triu(-1)),
    "tril_indices": lambda x: torch.tril_indices(4, 3, 1),
    "triu_indices": lambda x: torch.triu_indices(4, 3, -1, dtype=torch.int32),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_values(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_triangles_of_any_dtype(dtype: torch.dtype) -> None:
    check(lambda x: (x.tril(), x.triu(1)), torch.ones(4, 3, dtype=dtype))


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_range_includes_its_end() -> None:
    check(lambda x: (x[0] + torch.range(1, 5), torch.range(0, 2, 0.5)), X)


def test_tensor_bounds() -> None:
    check(
        lambda x: (
            torch.linspace(x, 5, 4),
            torch.linspace(0, x, 3),
            torch.linspace(x, x + 2, 1),
            torch.logspace(x, 2, 3),
        ),
        torch.tensor(1.5),
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float16])
def test_symbolic_ranges(dtype: torch.dtype) -> None:
    def ranges(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            torch.arange(n, dtype=dtype),
            torch.arange(1, n, dtype=dtype),
            torch.arange(n, 0, -2, dtype=dtype),
            torch.arange(0, n, 2, dtype=dtype),
            torch.eye(n, dtype=dtype),
            torch.ones(n, n + 1, dtype=dtype).tril(n - 3),
        )

    check(ranges, X, dynamic_shapes=({0: N},), others=[(torch.randn(9, 5),)])


def test_symbolic_ranges_of_fractions() -> None:
    check(
        lambda x: (torch.arange(0, x.shape[0], 0.5), torch.arange(0.5, x.shape[0] + 0.5)),
        X,
        dynamic_shapes=({0: N},),
        others=[(torch.randn(9, 5),)],
    )


def test_prims_iota() -> None:
    iota = torch.ops.prims.iota
    options = {"device": torch.device("cpu"), "requires_grad": False}
    check(lambda x: x + iota(5, start=2, step=3, dtype=torch.int32, **options), X)


SIGNAL = torch.ones(9)
NAMES = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("decompose", [False, True])
def test_windows(name: str, decompose: bool) -> None:
    make = getattr(torch, name)
    check(
        lambda x: (x * make(9), x * make(9, False), make(4, dtype=torch.float64)),
        SIGNAL,
        decompose=decompose,
    )


def test_shapes_of_windows() -> None:
    check(
        lambda x: (
            x * torch.hamming_window(9, True, 0.6),
            x * torch.hamming_window(9, False, 0.6, 0.3),
            x * torch.kaiser_window(9, True, 7.0),
        ),
        SIGNAL,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_numbers_spaced_by_dims(dtype: torch.dtype) -> None:
    def spaced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            torch.linspace(0.5, n - 0.5, 4, dtype=dtype),
            torch.linspace(-n, 9.9, 7, dtype=dtype),
            torch.linspace(n, 5, 1, dtype=dtype),
            torch.logspace(0, n, 3, 1.3, dtype=dtype),
        )

    rows = torch.export.Dim("rows")
    others = [(torch.randn(n, 5),) for n in (1, 2, 9)]
    check(spaced, X, dynamic_shapes=({0: rows},), others=others)
