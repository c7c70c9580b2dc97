"""Activation-aware scales: columns with large inputs are rounded on a finer grid.

Lin et al. 2023, "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration",
section 3.2. The weight is multiplied by a factor for each column before it is rounded, and the
inputs are divided by it. The factor is a power of the size of the inputs; the power is the one with
the least error of the product.
"""

from __future__ import annotations

import numpy as np

from coreai_onnx.quantization.weights.half_quadratic import half_quadratic_grid
from coreai_onnx.quantization.weights.scheme import Scheme

POWERS = 11
"""The number of powers from 0 to 1 that are tried."""
ROWS = 256
"""The number of rows that the error is measured on."""


def scaled_by_activations(weight: np.ndarray, moments: np.ndarray, scheme: Scheme) -> np.ndarray:
    """Return the factors of the columns, float32 ``[K]``.

    Args:
        weight: float32 ``[rows, groups, size]``; at most `ROWS` of the rows are looked at.
        moments: ``X^T X`` of the inputs, ``[K, K]``.
        scheme: Bits and symmetry.
    """
    rows = weight[:: -(-len(weight) // ROWS)]
    size = np.sqrt(np.maximum(np.diagonal(moments), 0)).astype(np.float64)
    size = np.maximum(size / max(float(size.max()), 1e-30), 1e-4)
    best, least = np.ones(len(size), np.float32), np.inf
    for power in np.linspace(0, 1, POWERS):
        factors = size**power
        factors = (factors / np.sqrt(factors.max() * factors.min())).astype(np.float32)
        grouped = factors.reshape(weight.shape[1:])
        scaled = rows * grouped
        rounded = half_quadratic_grid(scaled, scheme).rounded(scaled, scheme.levels)
        error = (rows - rounded / grouped).reshape(len(rows), -1)
        loss = float(((error @ moments) * error).sum(dtype=np.float64))
        if loss < least:
            best, least = factors, loss
    return best
