"""Sessions that record the nodes that onnxruntime runs: their order, results and memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.entrypoints import HasModels
from coreai_onnx.runtime.opening import Source
from coreai_onnx.runtime.session import Session

_SUFFIX = "_kernel_time"
_INLINE_BYTES = "64"
"""Weights of more bytes are written to a file of their own, which is not read."""
_LONG_NAMES = {"boolean": "bool"}


@dataclass(frozen=True)
class RecordedNode:
    """A node of the graph that onnxruntime ran, after its own optimizations.

    Attributes:
        name: Its name; onnxruntime prefixes nodes of a function with ``_inlfunc_`` and the name of
            the function.
        domain: The domain of its operator; empty for ONNX's own.
        op: Its operator.
        inputs: Names of the values that it reads, in its subgraphs too.
        outputs: Names of its results, without those that are omitted.
        bytes: Bytes of each result; None for one that is not a tensor.
        in_use: Bytes of onnxruntime's arena that were in use after it.
        change: By how much it has changed that number.
    """

    name: str
    domain: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes: tuple[int | None, ...]
    in_use: int
    change: int


@dataclass(frozen=True)
class Recording:
    """One run of a model.

    Attributes:
        nodes: The nodes of the main graph in the order in which they ran.
        inputs: Names of the inputs and of the weights.
        outputs: Names of the outputs.
        shapes: The dims of values as onnxruntime knew them before the run, by name: sizes and names
            of symbolic dims, empty if a dim has no name. Values of unknown rank are missing.
        weights: Bytes of the weights.
        before: Bytes of onnxruntime's arena that were in use before the run.
        arena: Bytes that the arena held after the run.
    """

    nodes: tuple[RecordedNode, ...]
    inputs: frozenset[str]
    outputs: frozenset[str]
    shapes: dict[str, tuple[int | str, ...]]
    weights: int
    before: int
    arena: int


class RecordedSession:
    """A session whose first run is recorded; a context manager, which closes it.

    Attributes:
        session: The session.
    """

    def __init__(
        self,
        source: Source | HasModels,
        *,
        entrypoint: str | None = None,
        kernels: bool | None = None,
        threads: int | None = None,
        low_memory: bool = False,
    ) -> None:
        """Open the model; the arguments are those of `coreai_onnx.session`.

        Raises:
            SessionError: As `coreai_onnx.session`.
        """
        self._folder = tempfile.TemporaryDirectory(
            prefix="coreai_onnx_", ignore_cleanup_errors=True
        )
        self._graph = Path(self._folder.name) / "graph.onnx"
        self._open = True
        try:
            self.session = Session(
                source,
                entrypoint=entrypoint,
                kernels=kernels,
                threads=threads,
                low_memory=low_memory,
                configure=self._configure,
            )
        except BaseException:
            self._folder.cleanup()
            raise

    def _configure(self, options: ort.SessionOptions) -> None:
        options.optimized_model_filepath = str(self._graph)
        entry = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{entry}_file_name", "weights")
        options.add_session_config_entry(f"{entry}_min_size_in_bytes", _INLINE_BYTES)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder.name) / "profile")

    def recording(self) -> Recording:
        """Return what the session's first run did; afterwards the session records nothing.

        Raises:
            SessionError: If the session has not run, or its record was returned already.
        """
        if not self._open:
            raise SessionError("the recording of this session has ended")
        events = _events(Path(self._end()))
        graph = onnx.load(self._graph, load_external_data=False).graph
        nodes = tuple(_matched(graph.node, events))
        if graph.node and not nodes:
            raise SessionError("the session has not run: there is nothing to record")
        values = (*graph.value_info, *graph.input, *graph.output)
        return Recording(
            nodes=nodes,
            inputs=frozenset(v.name for v in (*graph.input, *graph.initializer)),
            outputs=frozenset(value.name for value in graph.output),
            shapes={v.name: dims for v in values if (dims := _dims(v)) is not None},
            weights=sum(_bytes_of(weight) for weight in graph.initializer),
            before=nodes[0].in_use - nodes[0].change if nodes else 0,
            arena=int(events[-1]["args"].get("mem_arena_held", 0)) if events else 0,
        )

    def _end(self) -> str:
        self._open = False
        path: str = self.session.ort.end_profiling()
        return path

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session and remove its files."""
        if self._open:
            self._end()
        self.session.close()
        self._folder.cleanup()


def _events(path: Path) -> list[dict[str, Any]]:
    """Return the executions of nodes in a profile of onnxruntime."""
    return [
        event
        for event in json.loads(path.read_text(encoding="utf-8", errors="replace"))
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX)
    ]


def _matched(
    nodes: Iterable[onnx.NodeProto], events: Iterable[dict[str, Any]]
) -> Iterator[RecordedNode]:
    """Yield the first execution of each node; those in subgraphs lie between them."""
    rest = iter(events)
    for node in nodes:
        label = (node.name + _SUFFIX, node.op_type)
        event = next((e for e in rest if (e["name"], e["args"]["op_name"]) == label), None)
        if event is None:
            return
        yield _node(node, event["args"])


def _node(node: onnx.NodeProto, facts: dict[str, Any]) -> RecordedNode:
    outputs = tuple(filter(None, node.output))
    return RecordedNode(
        name=node.name,
        domain=node.domain,
        op=node.op_type,
        inputs=tuple(_read(node)),
        outputs=outputs,
        bytes=_sizes(facts, len(outputs)),
        in_use=int(facts["mem_bytes_requested_in_use"]),
        change=int(facts["mem_requested_in_use_delta"]),
    )


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {name for inner in graph.node for name in inner.output}
            for inner in graph.node:
                yield from (name for name in _read(inner) if name not in own)
            yield from (v.name for v in graph.output if v.name and v.name not in own)


def _sizes(facts: dict[str, Any], count: int) -> tuple[int | None, ...]:
    """Return the bytes of each result; onnxruntime lists the results that are tensors."""
    types = facts.get("output_type_shape", [])
    if len(types) != count:
        return (None,) * count
    if count == 1:
        return (int(facts["output_size"]),)
    return tuple(_bytes(*next(iter(one.items()))) for one in types)


def _bytes_of(weight: onnx.TensorProto) -> int:
    if weight.data_type == onnx.TensorProto.STRING:
        return sum(map(len, weight.string_data))
    return ceil(prod(weight.dims) * ir.DataType(weight.data_type).itemsize)


def _bytes(name: str, dims: list[int]) -> int | None:
    name = _LONG_NAMES.get(name, name).upper()
    if name not in ir.DataType.__members__ or name == "STRING":
        return None
    return ceil(prod(dims) * ir.DataType[name].itemsize)


def _dims(value: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim
    )
