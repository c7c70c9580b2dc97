"""Joins, repetitions and reorderings."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

X = torch.randn(2, 3, 4)
Y = torch.randn(2, 5, 4)
N = torch.export.Dim("n", min=3)

CASES = {
    "cat": lambda x, y: torch.cat([x, y, x], -2),
    "cat_one": lambda x, y: torch.cat([x], 0),
    "cat_dtypes": lambda x, y: torch.cat([x.int(), y, y.bool()], 1),
    "cat_legacy_empty": lambda x, y: torch.cat([torch.zeros(0, dtype=torch.float64), x, y], 1),
    "stack": lambda x, y: (torch.stack([x, x + 1], -1), torch.stack([x.sum(), y.sum()])),
    "stack_dtypes": lambda x, y: torch.stack([x.int(), x]),
    "hstack": lambda x, y: torch.hstack([x, y]),
    "vstack": lambda x, y: torch.vstack([x[0, 0], x[1, 1]]),
    "dstack": lambda x, y: torch.dstack([x, x]),
    "column_stack": lambda x, y: torch.column_stack([x[0, 0], x[0].t()]),
    "block_diag": lambda x, y: torch.block_diag(x[0], y[0, 0], y[0], x.sum()),
    "repeat": lambda x, y: (x.repeat(2, 1, 3), x.repeat(2, 1, 1, 2), x.sum().repeat(3)),
    "repeat_nothing": lambda x, y: (x.repeat(1, 1, 1, 1), x.repeat(0, 1, 1)),
    "tile": lambda x, y: (x.tile(2), x.tile(2, 1, 1, 3)),
    "repeat_interleave": lambda x, y: (x.repeat_interleave(2, 1), x.repeat_interleave(3)),
    "flip": lambda x, y: (x.flip(0), x.flip(-1, 1), x.flip(()), x.fliplr(), x.flipud()),
    "roll": lambda x, y: (x.roll(1, 0), x.roll((5, -1), (1, 2)), x.roll(7), x.roll(4, 2)),
    "rot90": lambda x, y: (x.rot90(1), x.rot90(2, (1, 2)), x.rot90(-1, (0, 2))),
    "meshgrid": lambda x, y: torch.meshgrid(x[0, 0], y[0, :, 0], indexing="ij"),
    "meshgrid_xy": lambda x, y: torch.meshgrid(x[0, 0], y[0, :, 0], x.sum(), indexing="xy"),
    "cartesian_prod": lambda x, y: (
        torch.cartesian_prod(x[0, 0], y[0, 0]),
        torch.cartesian_prod(x[0, 0]),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_values(name: str, decompose: bool) -> None:
    check(CASES[name], X, Y, decompose=decompose)


def test_repeat_interleave_of_a_tensor() -> None:
    counts = torch.tensor([2, 0, 3])
    check(lambda x, r: x.repeat_interleave(r, 1, output_size=5), X, counts)
    check(lambda r: torch.repeat_interleave(r, output_size=5), counts)
    check(lambda x, r: x.repeat_interleave(r, 1, output_size=6), X, torch.tensor([2]))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool]
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = (torch.randn(2, 3) > 0).to(dtype)
    check(lambda x: (torch.cat([x, x]), x.repeat(2, 2), x.roll(1, 0), x.flip(1)), x)
    check(lambda x: (torch.block_diag(x, x), x.repeat_interleave(2, 0)), x)


def test_symbolic_sizes() -> None:
    def joined(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            torch.cat([x, x[1:]]),
            torch.stack([x, x], 1),
            x.repeat(n, 2),
            x.repeat_interleave(2, 0),
            x.roll(2, 0),
            x.roll(-1),
            x.flip(0),
            torch.block_diag(x, x),
            *torch.meshgrid(x[:, 0], x[0], indexing="ij"),
        )

    check(joined, torch.randn(4, 3), dynamic_shapes=({0: N},), others=[(torch.randn(7, 3),)])


def test_empty() -> None:
    x = torch.zeros(0, 3)
    check(lambda x: (torch.cat([x, x]), x.roll(1, 0), x.flip(0), x.repeat(2, 2)), x)


def test_prims() -> None:
    prims = torch.ops.prims
    check(lambda x, y: (prims.cat([x, y], 1), prims.rev(x, [0, 2])), X, Y)
