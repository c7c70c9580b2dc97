"""The values in the graphs of ``cond``, ``while_loop``, ``scan`` and ``map``: torch's, by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.debugging.reference.control_flow import StepInterpreter, paths_of
from coreai_onnx.debugging.reference.true_values import tensors_of
from coreai_onnx.debugging.reference.widened import Widened
from coreai_onnx.errors import ComparisonError, failures_as

Steps = dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]]
"""A value and its float64 result by the iterations of the loops around it, outermost first."""


def step_values(program: ExportedProgram, inputs: Sequence[Any]) -> dict[str, Steps]:
    """Return the values in the graphs that the nodes of a program call.

    Args:
        program: The program.
        inputs: The values of its placeholders, in order.

    Returns:
        Steps by path of the graph and FX node, ``while_loop_body_graph_0/mul``. Empty if operators
        draw random numbers, so that another run has other values.

    Raises:
        ComparisonError: If the program cannot be run.
    """
    if not (paths := paths_of(program)):
        return {}
    found: dict[str, Steps] = {}
    failures = failures_as(ComparisonError, "the exported program cannot be run")
    with failures, torch.no_grad(), Widened() as widened:
        interpreter = _Interpreter(program.graph_module, "", (), paths)
        interpreter.found, interpreter.widened = found, widened
        interpreter.run(*inputs, enable_io_processing=False)
    return {} if widened.random else found


class _Interpreter(StepInterpreter):
    """Keeps the values inside of control flow."""

    found: dict[str, Steps]
    widened: Widened

    def inner(self, graph: fx.GraphModule, path: str, steps: tuple[int, ...]) -> StepInterpreter:
        made = _Interpreter(graph, path, steps, self._paths)
        made.found, made.widened = self.found, self.widened
        return made

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if self.path and n.op == "call_function":
            for name, tensor in tensors_of(n, result):
                pair = tensor.detach(), self.widened.ideal(tensor).detach()
                self.found.setdefault(f"{self.path}/{name}", {})[self.steps] = pair
        return result
