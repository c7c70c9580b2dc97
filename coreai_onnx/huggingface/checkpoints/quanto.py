"""The format of optimum-quanto: ``QuantizedModelForCausalLM.save_pretrained``.

``weight._data`` is int8 or float8 ``[outputs, inputs]`` with a scale ``weight._scale`` for each
output. ``weight._data._data`` is uint8 with codes of 4 or 2 bits in groups ``[groups, size]``, the
first part of the groups in the lowest bits of all bytes; their values are
``code * weight._scale - weight._shift``. ``quanto_qmap.json`` lists the layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.checkpoints.float_codes import float8_matrix
from coreai_onnx.huggingface.checkpoints.packed_matrices import LayerWeight, by_rows, of_codes
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint

METHOD = "quanto"
_FILE = "quanto_qmap.json"
_BITS = {"qint8": 8, "qint4": 4, "qint2": 2, "qfloat8": 8, "qfloat8_e4m3fn": 8}


def settings_of(folder: Path) -> dict[str, Any] | None:
    """Return the settings of a folder; None if optimum-quanto did not write it.

    Raises:
        ModelSourceError: If the file is not valid.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    with failures_as(ModelSourceError, f"cannot read {path}"):
        layers = {name: dict(one) for name, one in json.loads(path.read_text("utf-8")).items()}
    return {"quant_method": METHOD, "layers": layers}


def check(settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint."""
    for name, layer in (settings.get("layers") or {}).items():
        weights, inputs = layer.get("weights"), layer.get("activations", "none")
        if weights not in _BITS or inputs != "none":
            raise ModelSourceError(
                f"quanto: {name} has weights {weights!r} and activations {inputs!r}; supported are "
                f"weights of {', '.join(_BITS)} with activations 'none'"
            )


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer; None if it is in floating point."""
    if path not in settings["layers"]:
        return None
    for name in ("input_scale", "output_scale"):
        tensors.get(f"{path}.{name}")  # those of activations, which have none
    bits = _BITS[settings["layers"][path]["weights"]]
    scales = tensors[f"{path}.weight._scale"]
    packed = tensors.get(f"{path}.weight._data._data")
    if packed is None:
        weight = tensors[f"{path}.weight._data"]
        if weight.is_floating_point():
            return LayerWeight(float8_matrix(weight, scales))
        # Codes are unsigned, with the zero point in the middle.
        return LayerWeight(of_codes((weight.to(torch.int16) + 128).to(torch.uint8), scales, 8))
    rows, columns = shape
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    codes = torch.cat(parts).flatten()
    if packed.dtype != torch.uint8 or codes.numel() < rows * columns:
        raise ModelSourceError(
            f"{path} must have {rows * columns} codes in uint8, got {codes.numel()} in "
            f"{packed.dtype}"
        )
    size = packed[0].numel()
    factors = by_rows(scales.flatten(), shape, size)
    zeros = by_rows((tensors[f"{path}.weight._shift"] / scales).flatten(), shape, size)
    codes = codes[: rows * columns].view(shape)
    return LayerWeight(
        of_codes(codes, factors, bits, columns // factors.shape[1], zero_points=zeros)
    )
