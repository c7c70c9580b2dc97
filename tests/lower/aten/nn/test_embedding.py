"""Lowerings of table look-ups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types

BATCH = torch.export.Dim("batch")
INDICES = torch.tensor([1, 2, 4, 5, 4, 3, 2, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("decompose", [False, True])
def test_embedding(dtype: torch.dtype, index: torch.dtype, decompose: bool) -> None:
    model = check(
        lambda w, i: F.embedding(i, w, padding_idx=0),
        torch.randn(6, 3).to(dtype),
        INDICES.view(2, 4).to(index),
        decompose=decompose,
    )
    assert op_types(model) == ["Gather"]


def test_embedding_of_any_shape() -> None:
    for shape in ((), (0,), (1, 1, 2)):
        check(F.embedding, torch.zeros(shape, dtype=torch.int64), torch.randn(6, 3))
    check(
        torch.nn.Embedding(6, 3),
        INDICES.view(2, 4),
        dynamic_shapes=({0: BATCH},),
        others=[(torch.zeros(5, 4, dtype=torch.int64),)],
    )


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0])
def test_embedding_renorm(norm: float) -> None:
    check(
        lambda w, i: torch.ops.aten.embedding_renorm.default(w, i, 0.5, norm),
        torch.randn(6, 3),
        torch.tensor([[1, 1], [3, 0]]),
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "options",
    [{}, {"include_last_offset": True}, {"padding_idx": 2}, {"padding_idx": -2}],
    ids=str,
)
@pytest.mark.parametrize("offsets", [(0, 4), (0, 0, 3, 8), (0, 3, 3, 5)])
@pytest.mark.parametrize("decompose", [False, True])
def test_bags(
    mode: str, options: dict[str, Any], offsets: tuple[int, ...], decompose: bool
) -> None:
    if options.get("include_last_offset"):
        offsets = (*offsets[:-1], 8)
    check(
        lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, **options),
        torch.randn(6, 3),
        INDICES,
        torch.tensor(offsets),
        decompose=decompose,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weighted_bags(dtype: torch.dtype) -> None:
    check(
        lambda w, i, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        torch.randn(6, 3).to(dtype),
        INDICES.view(2, 4),
        torch.randn(2, 4).to(dtype),
    )


def test_all_results_of_bags() -> None:
    for mode in (0, 1, 2):
        check(
            lambda w, i, o, m=mode: torch.embedding_bag(w, i, o, False, m)[:1],
            torch.randn(6, 3),
            INDICES,
            torch.tensor([0, 3, 3]),
        )
