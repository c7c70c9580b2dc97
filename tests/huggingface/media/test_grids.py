"""Arguments of encoders of packed pictures: equal to those that transformers computes in loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coreai_onnx.huggingface.media.grids import arguments_of, names_of_grid, places_of
from coreai_onnx.huggingface.transformers_names import precompute_inputs
from tests.models.media import MEDIA_MODELS

MODELS = {one.name: one for one in MEDIA_MODELS}
GRIDS = ([[1, 8, 4], [1, 4, 4]], [[2, 6, 10], [1, 4, 6], [3, 2, 2]], [[1, 12, 18]])


@pytest.mark.parametrize("name", ["Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL"])
@pytest.mark.parametrize("sizes", GRIDS, ids=["two", "videos", "one"])
def test_arguments_of_transformers(name: str, sizes: list[list[int]]) -> None:
    encoder = MODELS[name].make().get_encoder(modality="image")
    grid = torch.tensor(sizes)
    expected: dict[str, Any] = {"grid_thw": grid}
    precompute_inputs(encoder, expected)
    count = int(grid.prod(1).sum())
    compute = arguments_of(encoder, places_of(grid, count, encoder.spatial_merge_size))
    names = names_of_grid(encoder, grid)
    assert "cu_seqlens" in names
    for argument in names:
        actual, wanted = compute[argument](), expected[argument]
        if argument.startswith("cu_"):
            part = (torch.arange(count)[:, None] >= wanted[None, 1:]).sum(1)
            actual = actual[:, None] == actual[None, :]
            wanted = part[:, None] == part[None, :]
        torch.testing.assert_close(actual, wanted)
