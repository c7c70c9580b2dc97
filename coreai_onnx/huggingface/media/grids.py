"""Packed pictures of several sizes: what an encoder reads from their grids of patches.

transformers computes it with loops over pictures, whose lengths a file cannot have; here every
patch finds its picture by comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from coreai_onnx.huggingface.transformers_names import attention_implementation, precompute_inputs

LENGTHS = ("max_seqlen", "max_window_seqlen")
"""Arguments of kernels of attention that the export does not call."""
_PACKED = "flash_attention_of_coreai_onnx"
"""transformers passes ends of packed pictures to an attention with "flash" in its name."""


def names_of_grid(encoder: Any, grid: torch.Tensor) -> list[str]:
    """Return the arguments of an encoder that transformers computes from grids.

    Args:
        encoder: The encoder; its weights are not read.
        grid: Frames, rows and columns of patches of each picture, int64 ``[pictures, 3]``.

    Raises:
        LibraryVersionError: If transformers is older than 5.14.
    """
    inputs: dict[str, Any] = {"grid_thw": grid}
    precompute_inputs(encoder, inputs)
    del inputs["grid_thw"]
    return [name for name, x in inputs.items() if isinstance(x, torch.Tensor)]


@dataclass(frozen=True)
class Patches:
    """The places of the patches of packed pictures, each int64 ``[patches]``.

    Patches that are merged to one feature follow one another.

    Attributes:
        frame: The frame, counted through all pictures.
        row: The row in the picture.
        column: The column in the picture.
        rows: The number of rows of the picture.
        columns: The number of columns of the picture.
    """

    frame: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor


def places_of(grid: torch.Tensor, count: int, merge: int) -> Patches:
    """Return the places of patches.

    Args:
        grid: Frames, rows and columns of patches of each picture, int64 ``[pictures, 3]``.
        count: The number of patches of all pictures.
        merge: Squares of ``merge * merge`` patches are merged to one feature.
    """
    index = torch.arange(count, device=grid.device)
    ends = grid.prod(1).cumsum(0)
    # The last picture also takes the patches that no grid has, so that no index is out of range.
    picture = (index[:, None] >= ends[None, :-1]).sum(1)
    first = (ends - grid.prod(1))[picture]
    frames, rows, columns = grid[picture].unbind(1)
    frame, within = (index - first) // (rows * columns), (index - first) % (rows * columns)
    square, inner = within // merge**2, within % merge**2
    squares = columns // merge
    before = (grid[:, 0].cumsum(0))[picture] - frames
    return Patches(
        frame=before + frame,
        row=square // squares * merge + inner // merge,
        column=square % squares * merge + inner % merge,
        rows=rows,
        columns=columns,
    )


def arguments_of(encoder: Any, places: Patches) -> Mapping[str, Callable[[], torch.Tensor]]:
    """Return what computes the arguments of an encoder, by their names in transformers.

    ``cu_seqlens`` and ``cu_window_seqlens`` are not ends, but the frame and the window of every
    patch, which `packed_attention` compares.

    Args:
        encoder: The encoder; its weights are not read.
        places: The places of the patches.
    """
    return {
        "position_ids": lambda: torch.stack([places.row, places.column], 1),
        "cu_seqlens": lambda: places.frame,
        "window_index": lambda: _by_window(encoder, places)[0],
        "cu_window_seqlens": lambda: _by_window(encoder, places)[1],
        "interp_indices": lambda: _interpolation(encoder, places)[0],
        "interp_weights": lambda: _interpolation(encoder, places)[1],
    }


def _by_window(encoder: Any, places: Patches) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features sorted by window, and the window of each patch in that order."""
    merge = encoder.spatial_merge_size
    side = encoder.window_size // encoder.patch_size // merge * merge
    first = slice(None, None, merge**2)  # of each feature
    row, column = places.row[first] // side, places.column[first] // side
    # Numbers that grow with frame, row and column of windows, with gaps.
    size = torch.maximum(places.rows, places.columns).amax()
    window = (places.frame[first] * size + row) * size + column
    order = torch.sort(window, stable=True).indices
    return order, window[order].repeat_interleave(merge**2)


def _interpolation(encoder: Any, places: Patches) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the four positions of the table next to each patch, and their weights."""
    side = int(encoder.num_grid_per_side)
    indices, weights = [], []
    for index, size in ((places.row, places.rows), (places.column, places.columns)):
        place = index.float() * (side - 1) / (size - 1).clamp(min=1)
        low = place.floor()
        indices.append(torch.stack([low, low + 1], 1).long().clamp(0, side - 1))
        weights.append(torch.stack([1 - (place - low), place - low], 1))
    index = indices[0][:, :, None] * side + indices[1][:, None, :]
    return index.flatten(1), (weights[0][:, :, None] * weights[1][:, None, :]).flatten(1)


@contextmanager
def packed_attention(encoder: Any) -> Iterator[None]:
    """While active, an encoder attends within pictures under a mask, without a loop over them."""
    AttentionInterface.register(_PACKED, _attend)
    with attention_implementation(encoder, _PACKED):
        yield


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cu_seq_lens_q: torch.Tensor,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within the frames or windows of patches."""
    del module, attention_mask, kwargs
    mask = cu_seq_lens_q[:, None] == cu_seq_lens_q[None, :]
    result = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask[None, None], scale=scaling
    )
    return result.transpose(1, 2).contiguous(), None
