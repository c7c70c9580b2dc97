"""The values in the graphs of ``cond``, ``while_loop``, ``scan`` and ``map``: torch's, by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.debugging.control_flow import RUNS
from coreai_onnx.debugging.true_values import tensors_of
from coreai_onnx.debugging.widened import Widened
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
    module = program.graph_module
    if not any(str(node.target) in RUNS for node in module.graph.nodes):
        return {}
    paths = {id(one): path for path, one in module.named_modules()}
    found: dict[str, Steps] = {}
    failures = failures_as(ComparisonError, "the exported program cannot be run")
    with failures, torch.no_grad(), Widened() as widened:
        interpreter = _Interpreter(module, (), paths, found, widened)
        interpreter.run(*inputs, enable_io_processing=False)
    return {} if widened.random else found


class _Interpreter(fx.Interpreter):
    """Runs the steps of control flow one by one, and keeps the values inside."""

    def __init__(
        self,
        module: fx.GraphModule,
        steps: tuple[int, ...],
        paths: dict[int, str],
        found: dict[str, Steps],
        widened: Widened,
    ) -> None:
        super().__init__(module)
        self._path, self._steps, self._widened = paths.get(id(module), ""), steps, widened
        self._paths, self._found = paths, found

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = RUNS.get(str(target))
        if run is None:
            return super().call_function(target, args, kwargs)
        return run(self._call, *args, **kwargs)

    def _call(self, graph: fx.GraphModule, operands: Sequence[Any], step: int | None) -> Any:
        steps = self._steps if step is None else (*self._steps, step)
        inner = _Interpreter(graph, steps, self._paths, self._found, self._widened)
        return inner.run(*operands, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if self._path and n.op == "call_function":
            for name, tensor in tensors_of(n, result):
                pair = tensor.detach(), self._widened.ideal(tensor).detach()
                self._found.setdefault(f"{self._path}/{name}", {})[self._steps] = pair
        return result
