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

UNRUNNABLE = "the exported program cannot be run"
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


class _Steps(fx.Interpreter):
    """Runs a graph with the steps of control flow one by one."""

    def __init__(
        self,
        call: BodyCall,
        paths: Mapping[int, str],
        on_call: Callable[[BodyCall], None],
        on_result: Callable[[BodyCall, fx.Node, Any], None],
    ) -> None:
        super().__init__(call.graph)
        self._of, self._paths, self._on_call, self._on_result = call, paths, on_call, on_result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = RUNS.get(str(target))
        if run is None:
            return super().call_function(target, args, kwargs)
        return run(self._run_inner, *args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if self._of.path and n.op == "call_function":
            self._on_result(self._of, n, result)
        return result

    def _run_inner(self, graph: fx.GraphModule, operands: Sequence[Any], step: int | None) -> Any:
        steps = self._of.steps if step is None else (*self._of.steps, step)
        call = BodyCall(graph, self._paths.get(id(graph), ""), steps, tuple(operands))
        self._on_call(call)
        inner = _Steps(call, self._paths, self._on_call, self._on_result)
        return inner.run(*operands, enable_io_processing=False)


def run_steps(
    program: ExportedProgram,
    inputs: Sequence[Any],
    *,
    on_call: Callable[[BodyCall], None] = lambda _: None,
    on_result: Callable[[BodyCall, fx.Node, Any], None] = lambda *_: None,
) -> None:
    """Run a program with the steps of its control flow one by one, if it has any.

    Args:
        program: The program.
        inputs: The values of its placeholders, in order.
        on_call: Called before each graph of control flow runs.
        on_result: Called with each operator in these graphs and its result.

    Raises:
        ComparisonError: If the program cannot be run.
    """
    module = program.graph_module
    if not any(str(node.target) in RUNS for node in module.graph.nodes):
        return
    paths = {id(one): path for path, one in module.named_modules()}
    with failures_as(ComparisonError, UNRUNNABLE), torch.no_grad():
        main = _Steps(BodyCall(module, "", (), ()), paths, on_call, on_result)
        main.run(*inputs, enable_io_processing=False)


def body_calls(program: ExportedProgram, inputs: Sequence[Any]) -> list[BodyCall]:
    """Run a program, and return the calls of the graphs of its control flow, in order.

    Returns:
        The calls; none if an operator draws random numbers, so that another run has other values.

    Raises:
        ComparisonError: If the program cannot be run.
    """
    calls: list[BodyCall] = []
    graphs = [m for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    if not any(draws(n.target, n.args, n.kwargs) for graph in graphs for n in graph.graph.nodes):
        run_steps(program, inputs, on_call=calls.append)
    return calls


_SWITCHES = ("train", "training", "dropout_p", "dropout")
"""Parameters of random ops; without them, or with another value than 0, an op is random."""


def draws(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call draws random numbers: attention without dropout does not."""
    if not isinstance(target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    arguments = target._schema.arguments
    values = {a.name: a.default_value for a in arguments}
    values |= {**dict(zip((a.name for a in arguments), args, strict=False)), **kwargs}
    return not any(name in values and not values[name] for name in _SWITCHES)
