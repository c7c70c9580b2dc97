"""What onnxruntime wrote about the runs of a profiled session: the nodes of each, with times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.model.inventory import attribute_graphs
from coreai_onnx.model.provenance.places import Marked
from coreai_onnx.model.work import Operand

WEIGHTS = ".data"
"""Suffix of the file of weights beside onnxruntime's graph."""
_END = "_kernel_time"
_SMALL = "1024"
"""Bytes of the weights that stay in the file of onnxruntime's graph; others are beside it."""


@dataclass(frozen=True)
class Executed:
    """One execution of a node of onnxruntime's graph.

    Attributes:
        name: Its name in that graph.
        op: Its operator.
        seconds: Its duration, without the nodes of its subgraphs.
        inputs: Types of its inputs, without those that onnxruntime has packed.
        outputs: Types of its outputs.
        in_use: Bytes of onnxruntime's arena that were in use after it; None if this onnxruntime
            does not count them.
        change: By how much it has changed that number.
        held: Bytes that the arena held.
    """

    name: str
    op: str
    seconds: float
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    in_use: int | None = None
    change: int = 0
    held: int = 0


@dataclass(frozen=True)
class Run:
    """One run of the model: its duration in seconds, and the nodes that it executed, in order."""

    seconds: float
    executed: tuple[Executed, ...]


def request_trace(options: ort.SessionOptions, folder: Path) -> Path:
    """Let a session record what it runs, in files of a folder.

    Returns:
        The file of the graph after onnxruntime's optimizations; its weights lie beside it.
    """
    graph = folder / "graph.onnx"
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.optimized_model_filepath = str(graph)
    # In one file with its weights, a graph of more than 2 GiB could not be written.
    place = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{place}_file_name", f"{graph.name}{WEIGHTS}")
    options.add_session_config_entry(f"{place}_min_size_in_bytes", _SMALL)
    return graph


def read_runs(path: Path) -> list[Run]:
    """Read the file of ``end_profiling``.

    Args:
        path: The file.

    Returns:
        The runs in the order in which they began; threads may run at the same time.
    """
    # In Chrome's trace format, X is an event with a duration.
    events = [event for event in json.loads(path.read_text()) if event.get("ph") == "X"]
    # Calls in several threads overlap in time, but the nodes of a run are in one thread.
    by_thread: dict[int, list[dict[str, Any]]] = {}
    # Times are whole microseconds: a Loop may begin in that of its first node, and must precede it.
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        by_thread.setdefault(event["tid"], []).append(event)
    runs = [run for thread in by_thread.values() for run in _runs(thread)]
    return [run for _, run in sorted(runs, key=lambda pair: pair[0])]


def _runs(events: Sequence[dict[str, Any]]) -> Iterator[tuple[int, Run]]:
    whole = [event for event in events if event["name"] == "model_run"]
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_END)]
    at = 0
    for run in whole:
        end = run["ts"] + run["dur"]
        while at < len(nodes) and nodes[at]["ts"] < run["ts"]:
            at += 1
        first = at
        while at < len(nodes) and nodes[at]["ts"] <= end:
            at += 1
        yield run["ts"], Run(run["dur"] * 1e-6, tuple(_executed(nodes[first:at])))


def _executed(events: Sequence[dict[str, Any]]) -> list[Executed]:
    """Return the nodes; a Loop lasts as long as its nodes, whose times are subtracted."""
    durations = [float(event["dur"]) for event in events]
    around: list[int] = []
    for index, event in enumerate(events):
        while around and _end(events[around[-1]]) < _end(event):
            around.pop()
        if around and _has_graph(events[around[-1]]):
            durations[around[-1]] -= event["dur"]
        if _has_graph(event):
            around.append(index)
    return [
        Executed(
            event["name"].removesuffix(_END),
            event["args"].get("op_name", ""),
            # Rounding can make the nodes of a Loop longer than the Loop.
            max(seconds, 0.0) * 1e-6,
            _tensors(event["args"].get("input_type_shape")),
            _tensors(event["args"].get("output_type_shape")),
            *_memory(event["args"]),
        )
        for event, seconds in zip(events, durations, strict=True)
    ]


def _memory(facts: dict[str, Any]) -> tuple[int | None, int, int]:
    if "mem_bytes_requested_in_use" not in facts:
        return None, 0, 0
    keys = ("mem_bytes_requested_in_use", "mem_requested_in_use_delta", "mem_arena_held")
    in_use, change, held = (int(facts[key]) for key in keys)
    return in_use, change, held


def _end(event: dict[str, Any]) -> int:
    end: int = event["ts"] + event["dur"]
    return end


def _has_graph(event: dict[str, Any]) -> bool:
    return event["args"].get("op_name") in ("If", "Loop", "Scan")


def _tensors(entries: Sequence[dict[str, list[int]]] | None) -> tuple[Operand, ...]:
    pairs = (pair for entry in entries or () for pair in entry.items())
    return tuple(Operand(dtype, tuple(shape)) for dtype, shape in pairs)


class Owners:
    """The places of the nodes that onnxruntime executes, also of those that it made itself."""

    def __init__(self, ran: ir.Model, model: Marked, executed: Sequence[Executed] = ()) -> None:
        """Assign each node of onnxruntime's graph to a place of the model.

        A fused node has the name of a node, or computes the value of one. A node that onnxruntime
        inserted belongs to the node that reads its result, or else to the one that it reads.

        Args:
            ran: The graph after onnxruntime's optimizations.
            model: The model that onnxruntime read.
            executed: What ran, in order. onnxruntime calls a node without a name by its operator
                and a number that its graph does not show.
        """
        nodes = list(_all_nodes(ran.graph))
        _name(nodes, executed)
        made_by = {
            value.name: model.number(node.name or "")
            for node in model.model.graph.all_nodes()
            for value in node.outputs
        }
        self._found: dict[str, int] = {}
        self._constants: dict[str, list[Operand | None]] = {}
        for node in nodes:
            number = model.number(node.name or "")
            owners = [number, *(made_by.get(value.name) for value in node.outputs)]
            self._assign(node, owners)
            self._constants[node.name or ""] = [_constant(value) for value in node.inputs]
        # Backwards, so that in a chain of inserted nodes each finds the place of its reader.
        for node in reversed(nodes):
            readers = (user.node for value in node.outputs for user in value.uses())
            self._assign(node, [self._found.get(reader.name or "") for reader in readers])
        for node in nodes:
            sources = (value.producer() for value in node.inputs if value is not None)
            self._assign(node, [self._found.get(x.name or "") for x in sources if x is not None])

    def _assign(self, node: ir.Node, owners: Sequence[int | None]) -> None:
        first_owner = next((owner for owner in owners if owner is not None), None)
        if first_owner is not None:
            self._found.setdefault(node.name or "", first_owner)

    def get(self, name: str) -> int | None:
        """Return the number of the place of a node; None if it is not known."""
        return self._found.get(name)

    def inputs(self, one: Executed) -> tuple[Operand, ...]:
        """Return the types of all inputs of a node, with the weights that are packed."""
        unpacked = list(one.inputs)
        operands = []
        for constant in self._constants.get(one.name, ()):
            if constant is None:
                operands += unpacked[:1]
                del unpacked[:1]
            else:
                operands.append(constant)
                if unpacked[:1] == [constant]:
                    del unpacked[:1]
        return one.inputs if unpacked else tuple(operands)


def _name(nodes: Sequence[ir.Node], executed: Sequence[Executed]) -> None:
    """Name unnamed nodes as onnxruntime does, so that the events of a profile can be matched."""
    graph_names = {node.name for node in nodes}
    names: dict[str, list[str]] = {}
    for name, op in dict.fromkeys((one.name, one.op) for one in executed):
        if name not in graph_names:
            names.setdefault(op, []).append(name)
    nameless: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if not node.name:
            nameless.setdefault(node.op_type, []).append(node)
    for op, group in nameless.items():
        ran = names.get(op, [])
        unknown = [f"{op} without a name {i}" for i in range(len(group))]
        for node, name in zip(group, ran if len(ran) == len(group) else unknown, strict=True):
            node.name = name


def _all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in graph:
        for attribute in node.attributes.values():
            for inner in attribute_graphs(attribute):
                yield from _all_nodes(inner)
        yield node


def _constant(value: ir.Value | None) -> Operand | None:
    """Return the type of an initializer, with onnxruntime's name of its dtype."""
    tensor = None if value is None else value.const_value
    if tensor is None:
        return None
    name = tensor.dtype.name.lower()
    return Operand(name, tuple(tensor.shape.numpy()))
