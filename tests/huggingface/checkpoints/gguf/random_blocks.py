"""Random blocks of GGUF's types."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear, PackedMatrix


def random_blocks(
    kind: GGMLQuantizationType, rows: int, columns: int, seed: int = 0
) -> tuple[np.ndarray, torch.Tensor]:
    """Return random bytes ``[rows, bytes]`` whose values are finite, and the values in float32."""
    random = np.random.default_rng(seed)
    block, size = GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (rows * columns // block, size), np.uint8)
    with np.errstate(all="ignore"):
        while (bad := ~np.isfinite(values_of(data, kind)).all(axis=1)).any():
            data[bad] = random.integers(0, 256, (bad.sum(), size), np.uint8)
        values = values_of(data, kind)
    return data.reshape(rows, -1), torch.from_numpy(values.reshape(rows, columns))


def values_of(blocks: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Return gguf's dequantization, ``[blocks, size]``."""
    if kind == GGMLQuantizationType.Q8_K:  # gguf has none
        scales = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
        return scales * np.ascontiguousarray(blocks[:, 4:260]).view(np.int8).astype(np.float32)
    return dequantize(blocks, kind)


def parts_of(matrix: PackedMatrix) -> list[torch.Tensor | None]:
    """Return the parts as composites take them, in the order of their inputs."""
    return PackedLinear(matrix).weight_parts()
