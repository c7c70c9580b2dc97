"""The formats of bitsandbytes: 4 bits with a palette (NF4, FP4), and 8 bits.

4 bits: ``weight`` is uint8, with the first of two codes in the high bits, for the rows of the
matrix one after the other; ``weight.absmax`` has a scale for each block of them, and may itself be
quantized in blocks; ``weight.quant_map`` is the palette; ``weight.quant_state.…`` describes it in
JSON. 8 bits: ``weight`` is int8, ``SCB`` has the largest magnitude of each row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    LayerWeight,
    PackedMatrix,
    by_rows,
    of_stream,
)
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings

_PALETTES = ("nf4", "fp4")
_SETTINGS = COMMON | frozenset(
    # Each weight describes itself.
    "load_in_4bit load_in_8bit bnb_4bit_quant_type bnb_4bit_use_double_quant "
    "bnb_4bit_quant_storage _load_in_4bit _load_in_8bit "
    # How a GPU computes, which may round inputs to 8 bits; they stay as they are here.
    "bnb_4bit_compute_dtype llm_int8_threshold llm_int8_skip_modules llm_int8_has_fp16_weight "
    "llm_int8_enable_fp32_cpu_offload".split()
)
check = partial(check_settings, "bitsandbytes", allowed=_SETTINGS)


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer; None if it is in floating point."""
    del settings  # each weight describes itself
    largest = tensors.get(f"{path}.SCB")
    if largest is not None:
        return LayerWeight(_of_bytes(tensors[f"{path}.weight"], largest))
    for kind in _PALETTES:
        state = tensors.get(f"{path}.weight.quant_state.bitsandbytes__{kind}")
        if state is not None:
            with failures_as(ModelSourceError, f"the quant_state of {path} is not valid"):
                described = json.loads(bytes(state.tolist()))
                block, stored = int(described["blocksize"]), tuple(described["shape"])
            # A transposed or merged weight has other shapes, with codes in another order.
            if stored != shape:
                raise ModelSourceError(f"{path} is {list(stored)} in the checkpoint, not {shape}")
            return LayerWeight(_of_palette(tensors, path, described, block, shape))
    return None


def _of_bytes(values: torch.Tensor, largest: torch.Tensor) -> PackedMatrix:
    if values.dtype != torch.int8 or largest.shape != values.shape[:1]:
        raise ModelSourceError(
            "SCB must have an element for each row of an int8 weight, got "
            f"{list(largest.shape)} for {values.dtype} {list(values.shape)}"
        )
    # linear_nbits subtracts 128 from unsigned codes; int8 would overflow in this sum.
    codes = (values.to(torch.int16) + 128).to(torch.uint8).unsqueeze(1)
    return PackedMatrix(codes, largest.float().unsqueeze(1) / 127, bits=8)


def _of_palette(
    tensors: Checkpoint,
    path: str,
    described: Mapping[str, Any],
    block: int,
    shape: tuple[int, int],
) -> PackedMatrix:
    """Return a matrix whose groups are parts of blocks, if a block is longer than a row."""
    name, (rows, columns) = f"{path}.weight", shape
    # Blocks run through the whole matrix, and may end in the middle of a row.
    scales = by_rows(_scales(tensors, name, described), shape, block)
    high_first = tensors[name].flatten().view(torch.uint8)
    if high_first.numel() * 2 != rows * columns:
        raise ModelSourceError(f"{name} has {high_first.numel()} bytes for {rows * columns} codes")
    # The first code is in the high bits here, and in the low bits of the streams of all other
    # formats.
    swapped = (high_first >> 4) | (high_first << 4)
    palette = tensors[f"{name}.quant_map"].float()
    return of_stream(swapped.view(rows, -1), scales, 4, columns, palette=palette)


def _scales(tensors: Checkpoint, name: str, described: Mapping[str, Any]) -> torch.Tensor:
    """Return the scale of each block, in float32."""
    scales = tensors[f"{name}.absmax"]
    nested = tensors.get(f"{name}.nested_absmax")
    if nested is None:
        return scales.float()
    block = int(described.get("nested_blocksize", 256))
    # Scales may be quantized as well (double quantization): bytes of a palette, with scales of
    # their own.
    blocks = torch.arange(len(scales)) // block
    steps = tensors[f"{name}.nested_quant_map"].float()[scales.long()]
    return steps * nested.float()[blocks] + float(described.get("nested_offset", 0.0))
