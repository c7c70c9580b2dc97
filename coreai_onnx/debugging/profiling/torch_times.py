"""The time of a model in torch, by the nodes of its exported program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from coreai_onnx.debugging.reference.torch_side import (
    InputSet,
    arguments_of,
    copied,
    feeds_of,
    reference_of,
)
from coreai_onnx.debugging.reference.torch_values import leaves_of, results_of
from coreai_onnx.errors import ComparisonError
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.lower.walk.location import where_of
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.provenance.places import Marked, Place, as_read, places_by_value
from coreai_onnx.model.provenance.source_lines import read_origins
from coreai_onnx.runtime.profile.node_times import TORCH, Execution, NodeTime
from coreai_onnx.runtime.profile.timing import Timing, Timings
from coreai_onnx.runtime.sessions.session import Session

_NODES = "nodes of torch"


class TorchTimes:
    """Runs a reference in torch, whole and node by node."""

    def __init__(self, reference: object, inputs: InputSet | None) -> None:
        """Copy the reference, so that runs do not change it.

        Args:
            reference: A record, an ``ExportedProgram`` or a module.
            inputs: The arguments; None for those of the export.

        Raises:
            ComparisonError: If there are no inputs.
        """
        exported = reference.program if isinstance(reference, ExportRecord) else reference
        self._program = exported if isinstance(exported, ExportedProgram) else None
        with without_warnings():  # torch copies a deprecated class of its own
            self._module = copied(reference_of(exported))
        self._args, self._kwargs = self._arguments(inputs)
        self._seconds: list[dict[str, float]] = []

    def _arguments(self, inputs: InputSet | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if inputs is not None:
            return arguments_of(inputs)
        example = self._program.example_inputs if self._program is not None else None
        if example is None:
            raise ComparisonError("the reference has no example inputs: give inputs=")
        return tuple(example[0]), dict(example[1])

    def feeds(self, session: Session) -> dict[str, object]:
        """Return the arguments by the names of a session's inputs."""
        return feeds_of(session, self._module, self._args, self._kwargs)

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return the callables to time: the whole, and the nodes if the reference is a program."""
        return {TORCH: self._whole} | ({_NODES: self._by_node} if self._program else {})

    def _whole(self) -> object:
        with torch.no_grad():
            return self._module(*self._args, **self._kwargs)

    def _by_node(self) -> None:
        assert isinstance(self._module, fx.GraphModule)
        assert self._program is not None
        flat = leaves_of(self._program, self._args, self._kwargs)
        timed = _Timed(self._module)
        with torch.no_grad():
            # The interpreter would flatten the arguments again, by the code that the export
            # generated.
            timed.run(*flat, enable_io_processing=False)
        self._seconds.append(timed.seconds)

    def execution(self, model: Any, timings: Timings, runs: int) -> Execution:
        """Return the times of the last ``runs`` by the nodes of an onnx_ir model."""
        timing = Timing(TORCH, timings[TORCH].seconds)
        if self._program is None or not isinstance(self._module, fx.GraphModule):
            return Execution(timing, ())
        # The runs before them have warmed up.
        seconds = self._seconds[-runs:]
        places = _places(self._program, self._module.graph.nodes, as_read(model))
        nodes, unplaced = [], 0.0
        for node in self._module.graph.nodes:
            times = tuple(run.get(node.name, 0.0) for run in seconds)
            place = places.get(node)
            if place is not None:
                nodes.append(NodeTime(place, str(node.target), times))
            elif node.op not in ("placeholder", "output", "get_attr"):
                unplaced += sum(times) / len(times)
        return Execution(timing, tuple(nodes), unplaced)


class _Timed(fx.Interpreter):
    """Measures every node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        start = time.perf_counter()
        result = super().run_node(n)
        self.seconds[n.name] = time.perf_counter() - start
        return result


def _places(
    program: ExportedProgram, nodes: Iterable[fx.Node], model: Marked
) -> Mapping[fx.Node, Place]:
    """Return the node of the file that each node of torch belongs to.

    It computes the value of a node of the file; or it is a part of the first one that reads it.
    """
    by_value = places_by_value(model)
    results = dict(results_of(program))
    origins = read_origins(model.model.metadata_props, by_value, results)
    # `split:1` is the second result of the node `split`.
    by_result = {of.partition(":")[0]: by_value[name] for name, of in origins.items()}
    ordered = [node for node in nodes if node.op.startswith("call")]
    of_node = {node: by_result[node.name] for node in ordered if node.name in by_result}
    # Backwards, so that in a chain each node finds the place of its reader.
    for node in reversed(ordered):
        reader = next((of_node[user] for user in node.users if user in of_node), None)
        if node not in of_node and reader is not None:
            of_node[node] = reader
    return {
        node: Place(place.position, place.node, place.op, where_of(node), node.name)
        for node, place in of_node.items()
    }
