"""Lowering of selective state spaces."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.export.compat.state_space import scan
from tests.lower.checking import check, op_types

DIMS = ({0: "batch", 1: "length"},) * 4
SIZES = ((1, 1), (3, 5), (1, 8), (2, 16), (3, 21))


def tensors(batch: int, length: int, heads: int = 4) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(batch, length, heads, 6),
        -torch.rand(batch, length, heads),
        torch.randn(batch, length, 2, 5) / 2,
        torch.randn(batch, length, 2, 5) / 2,
    )


def dims(given: tuple[dict[int, str], ...]) -> tuple[dict[int, torch.export.Dim], ...]:
    names = {name: torch.export.Dim(name) for name in ("batch", "length")}
    return tuple({axis: names[name] for axis, name in one.items()} for one in given)


@pytest.mark.parametrize("heads", [2, 4])
def test_every_length(heads: int) -> None:
    def run(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scan(*given, None, 8)

    others = [tensors(*size, heads) for size in SIZES]
    model = check(run, *tensors(2, 9, heads), dynamic_shapes=dims(DIMS), others=others)
    assert op_types(model).count("Scan") == 1


def test_an_initial_state() -> None:
    def run(state: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scan(*given, state, 8)

    others = [(torch.randn(size[0], 4, 6, 5), *tensors(*size)) for size in SIZES]
    first = (torch.randn(2, 4, 6, 5), *tensors(2, 9))
    check(run, *first, dynamic_shapes=dims(({0: "batch"}, *DIMS)), others=others)


@pytest.mark.parametrize("length", [1, 8, 20])
def test_known_sizes(length: int) -> None:
    check(lambda *given: scan(*given, None, 8), *tensors(2, length))
