"""GPTQ: the error of each column is corrected in the columns that are not rounded yet.

Frantar, Ashkboos, Hoefler and Alistarh 2022, "GPTQ: Accurate Post-Training Quantization for
Generative Pre-trained Transformers", algorithm 1. For inputs ``X [tokens, K]`` of a product it
minimizes ``|X (W - Q(W))^T|^2`` greedily, column by column; the rows of ``W`` do not interact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coreai_onnx.quantization.weights.grids import Grid
from coreai_onnx.quantization.weights.scheme import Scheme

DAMPING = 0.01
"""The part of the mean diagonal that is added to the second moments (section 3.3)."""
BLOCK = 128
"""The most columns that are corrected one by one, before the others are corrected together."""

GridOf = Callable[[np.ndarray, Scheme], Grid]


class Corrections:
    """What depends on the inputs only: the order of the columns and the factors of corrections.

    Args:
        moments: ``X^T X``, float ``[K, K]``.
        damping: Part of the mean diagonal that is added to the diagonal.
        act_order: Whether columns of large inputs are rounded first.

    Attributes:
        order: The order of the columns.
        factors: The upper Cholesky factor of the inverse of the moments in that order, float32.
        in_order: Whether the columns keep their order.
    """

    def __init__(
        self, moments: np.ndarray, *, damping: float = DAMPING, act_order: bool = False
    ) -> None:
        """Factorize the moments."""
        # Inputs correlate, so the moments are close to singular: in float32 the inverse is too
        # inexact.
        matrix = moments.astype(np.float64)
        diagonal = np.diagonal(matrix).copy()
        mean = float(diagonal.mean())
        self.in_order = not act_order
        order = np.argsort(-diagonal, kind="stable") if act_order else np.arange(len(diagonal))
        self.order = order
        if mean == 0:  # the inputs are zeros: nothing to correct
            self.factors = np.eye(len(diagonal), dtype=np.float32)
            return
        matrix = matrix[np.ix_(order, order)]
        matrix[np.diag_indices_from(matrix)] += damping * mean
        inverse = np.linalg.inv(matrix)
        # Rounding makes the inverse slightly asymmetric, and Cholesky reads one triangle only.
        lower = np.linalg.cholesky((inverse + inverse.T) / 2)
        self.factors = np.ascontiguousarray(lower.T).astype(np.float32)


def corrected_codes(
    weight: np.ndarray, scheme: Scheme, corrections: Corrections, grid_of: GridOf
) -> tuple[np.ndarray, Grid]:
    """Return codes and grids of rows.

    Args:
        weight: float32 ``[rows, groups, size]``, finite.
        scheme: Bits and symmetry.
        corrections: Of the inputs.
        grid_of: Chooses the grid of groups. With columns in order, the grid of a group is chosen
            when its first column is reached, from the corrected weights; otherwise all are chosen
            at first.

    Returns:
        The codes, float32 ``[rows, groups, size]``, and the grids.
    """
    rows, groups, size = weight.shape
    # With act_order, columns of large inputs go first: more are left to correct their errors.
    left = weight.reshape(rows, -1)[:, corrections.order].copy()
    codes = np.empty_like(left)
    grid = grid_of(weight, scheme)
    factors, owner = corrections.factors, corrections.order // size
    # In order, a block must end where a group does: the next grid is chosen from weights that all
    # columns before have corrected.
    step = (
        BLOCK if not corrections.in_order else max(n for n in range(1, BLOCK + 1) if size % n == 0)
    )
    for start in range(0, left.shape[1], step):
        stop = min(start + step, left.shape[1])
        if corrections.in_order and start % size == 0:
            group = start // size
            part = grid_of(left[:, None, start : start + size], scheme)
            grid.scales[:, group], grid.zeros[:, group] = part.scales[:, 0], part.zeros[:, 0]
        errors = _block(left, codes, grid, owner, factors, slice(start, stop), scheme.levels)
        # One product for a block (the paper's lazy batch updates, section 3.3): a rank-1 update of
        # all columns for each column is limited by the bandwidth of memory.
        left[:, stop:] -= errors @ factors[start:stop, stop:]
    # The file has the columns in their own order.
    restored = np.empty_like(codes)
    restored[:, corrections.order] = codes
    return restored.reshape(rows, groups, size), grid


def _block(
    left: np.ndarray,
    codes: np.ndarray,
    grid: Grid,
    owner: np.ndarray,
    factors: np.ndarray,
    block: slice,
    levels: int,
) -> np.ndarray:
    """Round the columns of a block; return their errors over the factors' diagonal."""
    errors = np.empty((len(left), block.stop - block.start), np.float32)
    for column in range(block.start, block.stop):
        group = slice(owner[column], owner[column] + 1)
        # Columns that are ordered by their inputs come from all groups in turn.
        column_grid = Grid(grid.scales[:, group], grid.zeros[:, group])
        before = left[:, column]
        code = column_grid.codes(before[:, None, None], levels)
        codes[:, column] = code[:, 0, 0]
        error = (before - column_grid.values(code)[:, 0, 0]) / factors[column, column]
        errors[:, column - block.start] = error
        rest = slice(column + 1, block.stop)
        left[:, rest] -= error[:, None] * factors[column, rest]
    return errors
