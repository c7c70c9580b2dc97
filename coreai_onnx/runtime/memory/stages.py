"""A model as stages, each of which fits the memory of a smaller machine.

Stages are ranges of nodes, cut between the modules of the user. What a stage takes is what the
memory plan says: weights, states, and the largest sum of results that live at once. Of the cuts
whose largest stage is at most a tenth above the least possible, those are chosen over which the
fewest bytes go. All sums are exact; the search is a dynamic program over the places for cuts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import onnx_ir as ir

from coreai_onnx.errors import InputError, StagingError
from coreai_onnx.messages import render, size_text
from coreai_onnx.model.extraction import fixed_values, infer_types, reads, with_nodes
from coreai_onnx.model.interface import interface
from coreai_onnx.model.metadata import STAGE, read_states
from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.runtime.memory.plan import MemoryPlan
from coreai_onnx.runtime.sessions.runnable import Runnable
from coreai_onnx.runtime.tensors.outputs import Array

_SLACK = 1.1
"""How far the largest stage may be above the least possible, for cuts that fewer bytes cross."""


@dataclass(frozen=True)
class StageCost:
    """What a stage takes, in bytes.

    Attributes:
        modules: The first and the last module of the stage.
        weights: Its weights; those that several stages read are in each of them.
        states: Its states.
        results: The largest sum of results that live at once, in the plan of the whole model.
        received: Values that it gets from earlier stages, for one run.
    """

    modules: tuple[str, str]
    weights: int
    states: int
    results: int
    received: int

    @property
    def memory(self) -> int:
        """The memory that it needs."""
        return self.weights + self.states + self.results


Program = TypeVar("Program", bound=Runnable)


@dataclass(frozen=True)
class Pipeline(Generic[Program]):
    """The stages of a model, of `OnnxProgram.split`; prints as a table of what each takes.

    ```python
    pipeline = program.split(2)
    for i, stage in enumerate(pipeline.stages):
        stage.save(f"stage_{i}.onnx")
    ```

    A stage reads inputs of the model and results of earlier stages, by their names.

    Attributes:
        stages: The programs, in order.
        costs: What each takes.
        whole: The model.
    """

    stages: tuple[Program, ...]
    costs: tuple[StageCost, ...]
    whole: ir.Model

    def run(self, *, kernels: bool | None = None, **inputs: object) -> dict[str, Array]:
        """Run the stages in this process; each keeps its states for the next call.

        Args:
            kernels: Whether to use native kernels, as for `coreai_onnx.session`.
            **inputs: All inputs of the model by name; states by name replace the carried ones.

        Returns:
            The outputs of the model, by name.

        Raises:
            InputError: If an input is missing, unknown or wrong.
            SessionError: If a stage cannot be run.
        """
        described = interface(self.whole)
        states = {x.name for x in described.states}
        if inputs.keys() - states != {x.name for x in described.inputs}:
            needed = ", ".join(str(x) for x in described.inputs)
            raise InputError(f"inputs must be {needed}, got {', '.join(inputs) or 'none'}")
        values: dict[str, Any] = dict(inputs)
        for stage in self.stages:
            session = stage.session(kernels=kernels)
            names = [*(x.name for x in session.inputs), *(states & set(session.states))]
            values |= session.run(**{name: values[name] for name in names if name in values})
        return {x.name: values[x.name] for x in described.outputs}

    def __str__(self) -> str:
        """Return the costs."""
        return _cost_table(self.costs)


def split(
    model: ir.Model, stages: int, plan: MemoryPlan, inputs: Mapping[str, object]
) -> tuple[tuple[ir.Model, ...], tuple[StageCost, ...]]:
    """Return the stages of a model, which share its weights, and their costs.

    Args:
        model: The model; it is not changed.
        stages: Their number, at least two.
        plan: The memory plan of the model, at the sizes for which stages are chosen.
        inputs: The inputs of its run, of which the states count.

    Raises:
        StagingError: If there are not enough places between modules, where only tensors cross and
            no state is read on one side and written on the other; or an output is no result.
    """
    if stages < 2:
        raise StagingError(f"stages must be at least 2, got {stages}")
    whole = model.clone()
    for value in whole.graph.outputs:
        if value.producer() is None:
            raise StagingError(f"no stage computes the output {value.name}: it is an input")
    for i, node in enumerate(whole.graph):
        node.name = f"{i}:{node.name}"  # unique, to be found in copies
    infer_types(whole)
    ranges = _Ranges(whole, plan, inputs)
    cuts = _cuts(ranges, stages)
    parts = [ranges.nodes[first:end] for first, end in pairwise(cuts)]
    models = tuple(with_nodes(whole, {node.name or "" for node in part}) for part in parts)
    outputs = [x.name for x in interface(whole).outputs]
    for i, one in enumerate(models):
        place = {"stage": i, "stages": stages, "outputs": outputs}
        one.metadata_props[STAGE] = json.dumps(place)
        for node in one.graph:
            node.name = (node.name or "").partition(":")[2]
    return models, tuple(ranges.cost(first, end) for first, end in pairwise(cuts))


class _Ranges:
    """The nodes of a model in order, and the costs of ranges of them."""

    def __init__(self, model: ir.Model, plan: MemoryPlan, inputs: Mapping[str, object]) -> None:
        graph, fixed = model.graph, fixed_values(model.graph)
        constants, results = set(fixed.values()), set(graph.outputs)
        # Constants are copied to the stages that read them.
        self.nodes = [x for x in graph if x not in constants or results & set(x.outputs)]
        position = {node: i for i, node in enumerate(self.nodes)}
        self._weights = [self._weights_of(graph, fixed, node) for node in self.nodes]
        live = dict(zip(plan.nodes, plan.live, strict=True))
        self._live = [live.get((x.name or "").partition(":")[2], 0) for x in self.nodes]
        self._crossing = self._crossings(position, fixed, plan.results)
        self._states = self._states_of(model, position, inputs)
        scopes = [_layer(node) for node in self.nodes]
        self.places = [
            i
            for i in range(1, len(self.nodes))
            if scopes[i - 1] != scopes[i]
            and self._crossing[i] is not None
            and not any(first < i <= last for first, last, _ in self._states)
        ]

    def _weights_of(
        self, graph: ir.Graph, fixed: Mapping[ir.Value, ir.Node], node: ir.Node
    ) -> dict[str, int]:
        """Return the weights that a node reads, also through constants."""
        weights, waiting = {}, list(reads(node))
        while waiting:
            value = waiting.pop()
            if value in fixed:
                waiting += reads(fixed[value])
            elif value.name in graph.initializers and value not in graph.inputs:
                tensor = value.const_value
                weights[value.name or ""] = 0 if tensor is None else tensor.nbytes
        return weights

    def _crossings(
        self,
        position: Mapping[ir.Node, int],
        fixed: Mapping[ir.Value, ir.Node],
        sizes: Mapping[str, int],
    ) -> list[int | None]:
        """Return the bytes that cross each place; None where not only tensors do."""
        last: dict[ir.Value, int] = {}
        for i, node in enumerate(self.nodes):
            last.update((value, i) for value in reads(node) if value not in fixed)
        crossing: list[int | None] = [0] * (len(self.nodes) + 1)
        for value, end in last.items():
            producer = value.producer()
            if producer is None or producer not in position:
                continue
            is_tensor = isinstance(value.type, ir.TensorType) and value.dtype is not None
            for i in range(position[producer] + 1, end + 1):
                here = crossing[i]
                has_size = is_tensor and here is not None
                crossing[i] = (here or 0) + sizes.get(value.name or "", 0) if has_size else None
        return crossing

    def _states_of(
        self, model: ir.Model, position: Mapping[ir.Node, int], inputs: Mapping[str, object]
    ) -> list[tuple[int, int, int]]:
        """Return the first and the last node that uses each state, and its size."""
        graph, states = model.graph, read_states(model.metadata_props)
        outputs = {value.name: value.producer() for value in graph.outputs}
        users: dict[str, list[int]] = {state.input: [] for state in states}
        for i, node in enumerate(self.nodes):
            for value in reads(node):
                if value.name in users:
                    users[value.name].append(i)
        ranges = []
        for state in states:
            writer = outputs.get(state.output)
            places = users[state.input]
            if writer is not None and writer in position:
                places.append(position[writer])
            tensor = graph.initializers.get(state.input)
            start = None if tensor is None else tensor.const_value
            initial = inputs.get(state.input, start)
            size = int(getattr(initial, "nbytes", 0))
            ranges.append((min(places, default=0), max(places, default=0), size))
        return ranges

    def cost(self, first: int, end: int) -> StageCost:
        weights: dict[str, int] = {}
        for one in self._weights[first:end]:
            weights |= one
        return self._cost(first, end, sum(weights.values()))

    def memories(self, first: int, ends: Sequence[int]) -> Iterator[int]:
        """Yield the memory of the ranges with one beginning."""
        seen: dict[str, int] = {}
        total, start = 0, first
        for end in ends:
            for weights in self._weights[start:end]:
                for name in weights.keys() - seen.keys():
                    seen[name] = weights[name]
                    total += weights[name]
            start = end
            yield self._cost(first, end, total).memory

    def _cost(self, first: int, end: int, weights: int) -> StageCost:
        modules = [module for module in map(_layer, self.nodes[first:end]) if module] or [""]
        return StageCost(
            modules=(modules[0], modules[-1]),
            weights=weights,
            states=sum(size for start, _, size in self._states if first <= start < end),
            results=max(self._live[first:end]),
            received=self.received(first),
        )

    def received(self, place: int) -> int:
        return self._crossing[place] or 0


def _layer(node: ir.Node) -> str:
    """Return the path of a node's module down to the first number, ``model.layers.3``."""
    parts = node.metadata_props.get(SCOPE, "").split(".")
    for i, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: i + 1])
    return parts[0] if len(parts) == 1 else ".".join(parts[:2])


def _cuts(ranges: _Ranges, stages: int) -> list[int]:
    """Return the beginnings of the stages and the end of the last."""
    places = [0, *ranges.places, len(ranges.nodes)]
    if len(places) - 1 < stages:
        raise StagingError(
            f"the model cannot be cut to {stages} stages: there are {len(ranges.places)} places "
            "between its modules where only tensors cross and no state is split"
        )
    memory = {
        (i, j): size
        for i, first in enumerate(places[:-1])
        for j, size in enumerate(ranges.memories(first, places[i + 1 :]), i + 1)
    }
    # First the least memory that is possible, then, near it, the cuts that the fewest bytes cross.
    (_, largest), _ = _chosen(len(places), stages, lambda i, j: (0, memory[i, j]))

    def cost(i: int, j: int) -> _Cost:
        is_fair = memory[i, j] <= _SLACK * largest
        return (ranges.received(places[i]) if is_fair else math.inf), memory[i, j]

    _, chosen = _chosen(len(places), stages, cost)
    return [places[i] for i in chosen]


_Cost = tuple[float, float]
"""Bytes that cross, of which the sum counts, and memory, of which the maximum counts."""


def _chosen(count: int, stages: int, cost: Callable[[int, int], _Cost]) -> tuple[_Cost, list[int]]:
    """Return the least cost of so many ranges of places, and where they begin and end."""
    best: dict[int, tuple[_Cost, list[int]]] = {0: ((0, 0), [0])}
    for _ in range(stages):
        longer: dict[int, tuple[_Cost, list[int]]] = {}
        for i, ((crossing, memory), path) in best.items():
            for j in range(i + 1, count):
                more, size = cost(i, j)
                joined = crossing + more, max(memory, size)
                if j not in longer or joined < longer[j][0]:
                    longer[j] = (joined, [*path, j])
        best = longer
    return best[count - 1]


def _cost_table(costs: Sequence[StageCost]) -> str:
    """Return the costs as text."""
    rows = [
        (
            str(i),
            " – ".join(dict.fromkeys(cost.modules)),
            *map(size_text, (cost.memory, cost.weights, cost.states, cost.results, cost.received)),
        )
        for i, cost in enumerate(costs)
    ]
    head = ("stage", "modules", "memory", "weights", "states", "results", "received")
    return render(head, rows)
