"""Composites as torch ops, for computations that torch would export as a loop or as copies.

``coreai::gather_mm``, ``coreai::gather_mm_nbits`` and ``coreai::gated_delta_update`` are single ops
in an exported program, for any length, and become calls of their composites. They compute the
references, without gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from coreai_onnx.composites import gated_delta_update as delta
from coreai_onnx.composites import gather_mm as gathered
from coreai_onnx.composites.linear_nbits import linear_nbits


@torch.library.custom_op("coreai::gather_mm", mutates_args=())
def gather_mm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    lhs_indices: torch.Tensor | None = None,
    rhs_indices: torch.Tensor | None = None,
    num_batch_axes: int = 0,
    transpose_rhs: bool = False,  # noqa: FBT001, FBT002 - the op's schema is positional
) -> torch.Tensor:
    """Compute :func:`coreai_onnx.composites.gather_mm.gather_mm`."""
    axis, chosen = num_batch_axes, rhs_indices
    if chosen is None or rhs.ndim - axis <= 2:
        return gathered.gather_mm(
            lhs, rhs, lhs_indices, chosen, num_batch_axes=axis, transpose_rhs=transpose_rhs
        )
    left = gathered.take(lhs, lhs_indices, axis)
    numbers = torch.arange(rhs.shape[:-2].numel()).view(rhs.shape[:-2])
    matrices = rhs.reshape(-1, *rhs.shape[-2:])
    return _by_matrix(
        left,
        gathered.take(numbers, chosen, axis),
        rhs.shape[-2 if transpose_rhs else -1],
        lambda rows, matrix: gathered.gather_mm(
            rows, matrices[matrix], transpose_rhs=transpose_rhs
        ),
    )


def _by_matrix(
    lhs: torch.Tensor,
    chosen: torch.Tensor,
    columns: int,
    multiply: Callable[[torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """Multiply all rows that share a matrix at once, so that no matrix is copied per row.

    Args:
        lhs: ``[..., M, K]``.
        chosen: The number of the matrix for each index of the batch axes.
        columns: The number of columns of a product.
        multiply: Returns the product of rows ``[n, M, K]`` and a matrix, ``[n, M, columns]``.
    """
    left = torch.arange(lhs.shape[:-2].numel()).view(lhs.shape[:-2])
    batch = torch.broadcast_shapes(left.shape, chosen.shape)
    left, right = left.expand(batch).reshape(-1), chosen.expand(batch).reshape(-1)
    rows = lhs.reshape(-1, *lhs.shape[-2:])
    result = lhs.new_empty(right.numel(), lhs.shape[-2], columns)
    for matrix in right.unique().tolist():
        here = right == matrix
        result[here] = multiply(rows[left[here]], matrix)
    return result.reshape(*batch, *result.shape[1:])


@gather_mm.register_fake
def _gather_mm_fake(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    lhs_indices: torch.Tensor | None = None,
    rhs_indices: torch.Tensor | None = None,
    num_batch_axes: int = 0,
    transpose_rhs: bool = False,  # noqa: FBT001, FBT002 - the op's schema is positional
) -> torch.Tensor:
    left = gathered.taken_shape(lhs, lhs_indices, num_batch_axes)
    right = gathered.taken_shape(rhs, rhs_indices, num_batch_axes)
    batch = torch.broadcast_shapes(left[:-2], right[:-2])
    return lhs.new_empty((*batch, left[-2], right[-2 if transpose_rhs else -1]))


@torch.library.custom_op("coreai::gather_mm_nbits", mutates_args=())
def gather_mm_nbits(
    lhs: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    indices: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    bits: int = 4,
    group_size: int = 32,
    activation_bits: int = 0,
) -> torch.Tensor:
    """Compute :func:`coreai_onnx.composites.gather_mm_nbits.gather_mm_nbits`."""

    def multiply(rows: torch.Tensor, matrix: int) -> torch.Tensor:
        zeros = None if zero_points is None else zero_points[matrix]
        parts = (codes[matrix], scales[matrix], zeros, palette)
        return linear_nbits(
            rows, *parts, bits=bits, group_size=group_size, activation_bits=activation_bits
        )

    return _by_matrix(lhs, indices, codes.shape[1], multiply)


@gather_mm_nbits.register_fake
def _gather_mm_nbits_fake(
    lhs: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    indices: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    bits: int = 4,
    group_size: int = 32,
    activation_bits: int = 0,
) -> torch.Tensor:
    del scales, zero_points, palette, bits, group_size, activation_bits
    batch = torch.broadcast_shapes(lhs.shape[:-2], indices.shape)
    return lhs.new_empty((*batch, lhs.shape[-2], codes.shape[1]))


@torch.library.custom_op("coreai::gated_delta_update", mutates_args=())
def gated_delta_update(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    use_qk_l2_norm: bool = True,  # noqa: FBT001, FBT002 - the op's schema is positional
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the function of the same name in :mod:`coreai_onnx.composites`."""
    output, state = delta.gated_delta_update(
        query, key, value, g, beta, initial_state, use_qk_l2_norm=use_qk_l2_norm
    )
    return output.contiguous(), state.contiguous()


@gated_delta_update.register_fake
def _gated_delta_update_fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    use_qk_l2_norm: bool = True,  # noqa: FBT001, FBT002 - the op's schema is positional
) -> tuple[torch.Tensor, torch.Tensor]:
    del g, beta, use_qk_l2_norm
    batch, heads, length, columns = value.shape
    like = query if initial_state is None else initial_state
    return (
        query.new_empty((batch, length, heads, columns)),
        like.new_empty((batch, heads, key.shape[3], columns)),
    )
