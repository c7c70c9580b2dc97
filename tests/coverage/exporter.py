"""The exporter hook of the coverage sweeps: an exported program through this package and onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.export.decompositions import functional
from coreai_onnx.lower import Context, IONames, ProgramLowering
from tests.lower.checking import run_model


class Runner:
    """A converted program."""

    def __init__(self, model: ir.Model, user_outputs: int) -> None:
        self.model, self.user_outputs = model, user_outputs

    def run(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Return the user outputs for flat inputs, as tensors: the sweep gives 0-d arrays an axis."""
        outputs = run_model(self.model, inputs)[: self.user_outputs]
        return [x if isinstance(x, torch.Tensor) else torch.from_numpy(x) for x in outputs]


def coreai(
    module: torch.nn.Module,
    args: Sequence[Any],
    *,
    exported_program: torch.export.ExportedProgram,
    **_as_exported: Any,
) -> Runner:
    """Convert a program for the sweeps; what else they say is in the program already."""
    del module, args
    program = functional(exported_program)
    lowered = ProgramLowering(program, Context(opset=23), IONames()).run()
    count = len(lowered.graph.outputs) - len(lowered.states)
    return Runner(lowered.model([], "main"), count)
