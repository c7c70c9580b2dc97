"""The formats of bitsandbytes: 4 bits with a palette (NF4, FP4), and 8 bits.

4 bits: ``weight`` is uint8, with the first of two codes in the high bits, for the rows of the
matrix one after the other; ``weight.absmax`` has a scale for each block of them, and may itself be
quantized in blocks; ``weight.quant_map`` is the palette; ``weight.quant_state.…`` describes it in
JSON. 8 bits: ``weight`` is int8, ``SCB`` has the largest magnitude of each row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix, packed_rows
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint

_PALETTES = ("nf4", "fp4")


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> PackedMatrix | None:
    """Return the weight of a linear layer; None if the checkpoint has it in floating point.

    Raises:
        ModelSourceError: If a part of the weight is missing or has another shape.
    """
    del settings  # each weight describes itself
    largest = tensors.get(f"{path}.SCB")
    if largest is not None:
        return _of_bytes(tensors[f"{path}.weight"], largest)
    for kind in _PALETTES:
        state = tensors.get(f"{path}.weight.quant_state.bitsandbytes__{kind}")
        if state is not None:
            with failures_as(ModelSourceError, f"the quant_state of {path} is not valid"):
                described = json.loads(bytes(state.tolist()))
                block, given = int(described["blocksize"]), tuple(described["shape"])
            if given != shape:
                raise ModelSourceError(f"{path} is {list(given)} in the checkpoint, not {shape}")
            return _of_palette(tensors, f"{path}.weight", described, block, shape)
    return None


def _of_bytes(values: torch.Tensor, largest: torch.Tensor) -> PackedMatrix:
    codes = (values.to(torch.int16) + 128).to(torch.uint8).unsqueeze(1)
    return PackedMatrix(codes, largest.float().unsqueeze(1) / 127, bits=8)


def _of_palette(
    tensors: Checkpoint,
    name: str,
    described: Mapping[str, Any],
    block: int,
    shape: tuple[int, int],
) -> PackedMatrix:
    """Return a matrix whose groups are parts of blocks, if a block is longer than a row."""
    rows, columns = shape
    group = math.gcd(columns, block)
    starts = torch.arange(rows * columns // group) * group
    scales = _scales(tensors, name, described)[starts // block].view(rows, -1)
    high_first = tensors[name].flatten().view(torch.uint8)
    if high_first.numel() * 2 != rows * columns:
        raise ModelSourceError(f"{name} has {high_first.numel()} bytes for {rows * columns} codes")
    swapped = (high_first >> 4) | (high_first << 4)
    codes = packed_rows(swapped.view(rows, -1), scales, 4, columns)
    return PackedMatrix(codes, scales, 4, palette=tensors[f"{name}.quant_map"].float())


def _scales(tensors: Checkpoint, name: str, described: Mapping[str, Any]) -> torch.Tensor:
    """Return the scale of each block, in float32."""
    scales = tensors[f"{name}.absmax"]
    nested = tensors.get(f"{name}.nested_absmax")
    if nested is None:
        return scales.float()
    block = int(described.get("nested_blocksize", 256))
    blocks = torch.arange(len(scales)) // block
    steps = tensors[f"{name}.nested_quant_map"].float()[scales.long()]
    return steps * nested.float()[blocks] + float(described.get("nested_offset", 0.0))
