"""Lowerings of products of groups of rows."""

from __future__ import annotations

import pytest
import torch
import transformers.integrations.moe  # noqa: F401 - defines transformers::grouped_mm_fallback

from tests.lower.checking import check, op_types

OFFSETS = torch.tensor([2, 2, 5, 6], dtype=torch.int32)
ROWS = torch.export.Dim("rows", min=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows(dtype: torch.dtype) -> None:
    x, w = torch.randn(6, 8).to(dtype), torch.randn(4, 8, 16).to(dtype)
    everything_last = torch.tensor([0, 0, 0, 6], dtype=torch.int32)
    model = check(
        torch.ops.transformers.grouped_mm_fallback.default,
        x,
        w,
        OFFSETS,
        others=[(x, w, everything_last)],
    )
    assert op_types(model).count("Loop") == 1


def test_rows_behind_the_last_group_are_zero() -> None:
    args = torch.randn(9, 8), torch.randn(4, 8, 16), OFFSETS
    none = torch.zeros(4, dtype=torch.int32)
    check(torch.ops.transformers.grouped_mm_fallback.default, *args, others=[(*args[:2], none)])


def test_dynamic_rows() -> None:
    check(
        torch.ops.transformers.grouped_mm_fallback.default,
        torch.randn(6, 8),
        torch.randn(4, 8, 16),
        OFFSETS,
        dynamic_shapes=({0: ROWS}, None, None),
        others=[
            (
                torch.randn(12, 8),
                torch.randn(4, 8, 16),
                torch.tensor([0, 7, 7, 12], dtype=torch.int32),
            )
        ],
    )


@pytest.mark.parametrize(
    ("a", "b"), [((8, 8), (4, 8, 16)), ((16, 8), (8, 16)), ((4, 8, 16), (16, 8))]
)
def test_every_ragged_axis(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    offsets = torch.tensor([1, 2, 5, 8], dtype=torch.int32)
    x, y = torch.randn(a).bfloat16(), torch.randn(b).bfloat16()
    check(torch.ops.aten._grouped_mm.default, x, y, offsets)


def test_without_offsets() -> None:
    x, y = torch.randn(4, 8, 16).bfloat16(), torch.randn(4, 16, 8).bfloat16()
    check(torch.ops.aten._grouped_mm.default, x, y)
