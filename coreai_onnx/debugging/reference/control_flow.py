"""The steps of ``cond``, ``while_loop``, ``scan`` and ``map``: which graph runs on which operands.

torch runs each of them as one operator. These functions run its graphs one by one, so that the
operators inside can be observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.errors import ComparisonError, failures_as
from coreai_onnx.export.compat.torch_names import OpOverload

Call = Callable[[Any, Sequence[Any], int | None], Any]
"""Runs a graph on operands, in a step of a loop or None outside of loops."""


def run_cond(call: Call, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """Run ``cond``: the branch that is taken."""
    return call(true_fn if bool(pred) else false_fn, operands, None)


def run_while_loop(call: Call, cond_fn: Any, body_fn: Any, carried: Any, additional: Any) -> Any:
    """Run ``while_loop``: the body as long as the condition holds; each iteration is a step."""
    carried, step = tuple(carried), 0
    while bool(call(cond_fn, [*carried, *additional], step)):
        carried = tuple(call(body_fn, [*carried, *additional], step))
        step += 1
    # Without an iteration these are the operands, and a caller may write to the results.
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in carried)


def run_scan(call: Call, combine_fn: Any, init: Any, xs: Any, additional: Any = ()) -> Any:
    """Run ``scan``: the function on each slice; returns the carries and the stacked outputs."""
    carried: list[Any] = list(init)
    slices: list[list[Any]] = []
    for step, inputs in enumerate(zip(*xs, strict=True)):
        results = list(call(combine_fn, [*carried, *inputs, *additional], step))
        carried = results[: len(init)]
        slices.append(results[len(init) :])
    return [*carried, *(torch.stack(column) for column in zip(*slices, strict=True))]


def run_map(call: Call, function: Any, xs: Any, additional: Any = ()) -> Any:
    """Run ``map_impl``: a scan that carries nothing."""
    return run_scan(call, function, (), xs, additional)


RUNS: dict[str, Callable[..., Any]] = {
    "cond": run_cond,
    "while_loop": run_while_loop,
    "scan": run_scan,
    "map_impl": run_map,
}
"""Function by the name of torch's operator: it takes a `Call` and the operator's arguments."""


class StepInterpreter(fx.Interpreter):
    """Runs a program with the steps of control flow one by one.

    Attributes:
        path: Path of the graph that runs; empty for the outermost.
        steps: The iterations of the loops around it, outermost first.
    """

    def __init__(
        self, module: fx.GraphModule, path: str, steps: tuple[int, ...], paths: dict[int, str]
    ) -> None:
        """Start a run.

        Args:
            module: The graph.
            path: As the attribute.
            steps: As the attribute.
            paths: The path of each graph of the program, by its id.
        """
        super().__init__(module)
        self.path, self.steps, self._paths = path, steps, paths

    def inner(self, graph: fx.GraphModule, path: str, steps: tuple[int, ...]) -> StepInterpreter:
        """Return the interpreter of a graph that control flow calls."""
        return StepInterpreter(graph, path, steps, self._paths)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, or the steps of control flow."""
        run = RUNS.get(str(target))
        if run is None:
            return super().call_function(target, args, kwargs)
        return run(self._call, *args, **kwargs)

    def _call(self, graph: fx.GraphModule, operands: Sequence[Any], step: int | None) -> Any:
        steps = self.steps if step is None else (*self.steps, step)
        inner = self.inner(graph, self._paths.get(id(graph), ""), steps)
        return inner.run(*operands, enable_io_processing=False)


def paths_of(program: ExportedProgram) -> dict[int, str]:
    """Map the ids of a program's graphs to their paths; empty if there is no control flow."""
    module = program.graph_module
    if not any(str(node.target) in RUNS for node in module.graph.nodes):
        return {}
    return {id(one): path for path, one in module.named_modules()}


@dataclass(frozen=True)
class BodyCall:
    """A call of a graph by control flow.

    Attributes:
        graph: The graph.
        path: Its path in the program.
        steps: The iterations of the loops around it, outermost first, its own last.
        operands: The values of its placeholders.
    """

    graph: fx.GraphModule
    path: str
    steps: tuple[int, ...]
    operands: tuple[Any, ...]


def body_calls(program: ExportedProgram, inputs: Sequence[Any]) -> list[BodyCall]:
    """Run a program, and return the calls of the graphs of its control flow, in order.

    Args:
        program: The program.
        inputs: The values of its placeholders, in order.

    Returns:
        The calls; none if an operator draws random numbers, so that another run has other values.

    Raises:
        ComparisonError: If the program cannot be run.
    """
    found: list[BodyCall] = []
    graphs = [m for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    if any(draws(n.target, n.args, n.kwargs) for graph in graphs for n in graph.graph.nodes):
        return found
    if not (paths := paths_of(program)):
        return found
    failures = failures_as(ComparisonError, "the exported program cannot be run")
    with failures, torch.no_grad():
        recorder = _Recorder(program.graph_module, "", (), paths)
        recorder.found = found
        recorder.run(*inputs, enable_io_processing=False)
    return found


class _Recorder(StepInterpreter):
    """Records the calls."""

    found: list[BodyCall]

    def inner(self, graph: fx.GraphModule, path: str, steps: tuple[int, ...]) -> StepInterpreter:
        made = _Recorder(graph, path, steps, self._paths)
        made.found = self.found
        return made

    def run(self, *args: Any, **options: Any) -> Any:
        # The graph without a path is the program, which no control flow calls.
        if self.path and isinstance(self.module, fx.GraphModule):
            self.found.append(BodyCall(self.module, self.path, self.steps, args))
        return super().run(*args, **options)


_SWITCHES = ("train", "training", "dropout_p", "dropout")
"""Parameters of random ops; without them, or with another value than 0, an op is random."""


def draws(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call draws random numbers: attention without dropout does not."""
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    arguments = target._schema.arguments
    given = {a.name: a.default_value for a in arguments}
    given |= {**dict(zip((a.name for a in arguments), args, strict=False)), **kwargs}
    return not any(name in given and not given[name] for name in _SWITCHES)
