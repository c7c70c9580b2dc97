"""Lowerings of products of groups of rows."""

from __future__ import annotations

import pytest
import torch
import transformers.integrations.moe  # noqa: F401 - defines transformers::grouped_mm_fallback

from coreai_onnx import convert
from tests.lower.checking import Wrapped, check, op_types
from tests.support.tolerances import assert_close

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored_transposed", [True, False])
def test_rows_are_a_composite(dtype: torch.dtype, *, stored_transposed: bool) -> None:
    weight = torch.randn((4, 16, 8) if stored_transposed else (4, 8, 16)).to(dtype)

    def product(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        matrices = weight.transpose(1, 2) if stored_transposed else weight
        return torch.ops.transformers.grouped_mm_fallback(x, matrices, offsets)

    given = torch.randn(6, 8).to(dtype), OFFSETS
    program = convert(Wrapped(product), given, dynamic_shapes=(({0: ROWS}, None),))
    (node,) = (n for n in program.model.graph if n.domain == "ai.coreai")
    assert node.op_type == "gather_mm"
    assert node.attributes["transpose_rhs"].as_int() == int(stored_transposed)
    assert node.inputs[1].is_initializer()
    none = torch.zeros(4, dtype=torch.int32)
    for x, offsets in (given, (torch.randn(9, 8).to(dtype), OFFSETS), (given[0], none)):
        assert_close(program.run(x, offsets, kernels=False)[0], product(x, offsets))


def test_groups_of_bfloat16_rows_are_a_composite() -> None:
    def product(x: torch.Tensor, y: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._grouped_mm(x, y, offsets)

    offsets = torch.tensor([1, 2, 5, 8], dtype=torch.int32)
    given = torch.randn(8, 8).bfloat16(), torch.randn(4, 8, 16).bfloat16(), offsets
    program = convert(Wrapped(product), given)
    assert program.composites() == {"ai.coreai::gather_mm": 1}
    assert_close(program.run(*given, kernels=False)[0], product(*given))


def test_without_offsets() -> None:
    x, y = torch.randn(4, 8, 16).bfloat16(), torch.randn(4, 16, 8).bfloat16()
    check(torch.ops.aten._grouped_mm.default, x, y)
