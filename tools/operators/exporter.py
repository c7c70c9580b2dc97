"""The exporter hook of the coverage sweeps: a program through the converter and onnxruntime."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from coreai_onnx import TorchConverter
from coreai_onnx.errors import SpecializationWarning
from coreai_onnx.model.metadata import read_mutated_inputs, read_states
from tests.lower.checking import run_model


class Runner:
    """A converted program."""

    def __init__(self, model: ir.Model, user_outputs: int) -> None:
        self.model, self.user_outputs = model, user_outputs

    def run(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Return the user outputs for flat inputs, as tensors: the sweep would give 0-d an axis."""
        if not self.user_outputs:  # onnxruntime loads no model without values
            return []
        outputs = run_model(self.model, inputs)[: self.user_outputs]
        return [x if isinstance(x, torch.Tensor) else _tensor(x) for x in outputs]


def _tensor(x: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor; onnxruntime's uint64 is another C type than numpy's."""
    return torch.from_numpy(x.astype(np.uint64) if x.dtype.char == "Q" else x)


def coreai(
    module: torch.nn.Module,
    args: Sequence[Any],
    *,
    exported_program: torch.export.ExportedProgram,
    **_as_exported: Any,
) -> Runner:
    """Convert a program for the sweeps; what else they say is in the program already."""
    del module, args
    with warnings.catch_warnings():  # sizes that torch fixes are the sweep's to find
        warnings.simplefilter("ignore", SpecializationWarning)
        converter = TorchConverter().add_exported_program(exported_program)
    program = converter.to_onnx().optimize()
    metadata = program.model.metadata_props
    changed = len(read_states(metadata)) + len(read_mutated_inputs(metadata))
    return Runner(program.model, len(program.model.graph.outputs) - changed)
