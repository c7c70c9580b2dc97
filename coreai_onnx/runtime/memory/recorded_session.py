"""Sessions that record the nodes that onnxruntime runs: their order, results and memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.profile.trace import Executed, read_runs, request_trace
from coreai_onnx.runtime.sessions.entrypoints import HasModels
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import Source


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
        in_use: Bytes of onnxruntime's arena that were in use after it; None if this onnxruntime
            does not count them.
    """

    name: str
    domain: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes: tuple[int | None, ...]
    in_use: int | None


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


@contextmanager
def recorded_session(source: Source | HasModels, **settings: Any) -> Iterator[RecordedSession]:
    """Open a session whose first run is recorded, and close it; for settings see `Session`.

    Raises:
        SessionError: As `coreai_onnx.session`.
    """
    graphs: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="coreai_onnx_", ignore_cleanup_errors=True) as folder:

        def configure(options: ort.SessionOptions) -> None:
            graphs.append(request_trace(options, Path(folder)))

        session = Session(source, configure=configure, **settings)
        recorded = RecordedSession(session, graphs[0])
        try:
            yield recorded
        finally:
            recorded.end()
            session.close()


@dataclass
class RecordedSession:
    """A session whose first run is recorded.

    Attributes:
        session: The session.
        graph: The file of the graph after onnxruntime's optimizations.
    """

    session: Session
    graph: Path
    _path: str = ""

    def recording(self) -> Recording:
        """Return what the session's first run did; afterwards the session records nothing.

        Raises:
            SessionError: If the session has not run, or its record was returned already.
        """
        if self._path:
            raise SessionError("the recording of this session has ended")
        runs = read_runs(Path(self.end()))
        if not runs:
            raise SessionError("the session has not run: there is nothing to record")
        # The bytes of weights follow from their types, so that their data need not be read.
        graph = onnx.load(self.graph, load_external_data=False).graph
        executed = runs[0].executed
        nodes = tuple(_matched(graph.node, executed))
        values = (*graph.value_info, *graph.input, *graph.output)
        return Recording(
            nodes=nodes,
            inputs=frozenset(v.name for v in (*graph.input, *graph.initializer)),
            outputs=frozenset(value.name for value in graph.output),
            shapes={v.name: dims for v in values if (dims := _dims(v)) is not None},
            weights=sum(_bytes_of(weight) for weight in graph.initializer),
            # onnxruntime counts after each node, so that the first change is subtracted.
            before=(executed[0].in_use or 0) - executed[0].change if executed else 0,
            arena=executed[-1].held if executed else 0,
        )

    def end(self) -> str:
        """End the recording, and return its file."""
        if not self._path:
            self._path = self.session.ort.end_profiling()
        return self._path


def _matched(
    nodes: Iterable[onnx.NodeProto], executed: Iterable[Executed]
) -> Iterator[RecordedNode]:
    """Yield the first execution of each node; those in subgraphs lie between them."""
    rest = iter(executed)
    for node in nodes:
        # `rest` continues after the last match: both are in the order of execution.
        one = next((e for e in rest if _is_run_of(e, node)), None)
        if one is None:
            return
        outputs = tuple(filter(None, node.output))
        yield RecordedNode(
            node.name, node.domain, node.op_type, tuple(_read(node)), outputs,
            _sizes(one, len(outputs)), one.in_use,
        )  # fmt: skip


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inner_names = {name for inner in graph.node for name in inner.output}
            for inner in graph.node:
                yield from (name for name in _read(inner) if name not in inner_names)
            yield from (v.name for v in graph.output if v.name and v.name not in inner_names)


def _is_run_of(one: Executed, node: onnx.NodeProto) -> bool:
    """Return whether a node was executed; onnxruntime names nodes without a name."""
    return one.op == node.op_type and (one.name == node.name or not node.name)


def _sizes(one: Executed, count: int) -> tuple[int | None, ...]:
    """Return the bytes of each result; onnxruntime lists the results that are tensors."""
    if len(one.outputs) != count:
        return (None,) * count
    return tuple(ceil(output.nbytes) for output in one.outputs)


def _bytes_of(weight: onnx.TensorProto) -> int:
    if weight.data_type == onnx.TensorProto.STRING:
        return sum(map(len, weight.string_data))
    size: int = ceil(prod(weight.dims) * ir.DataType(weight.data_type).bitwidth / 8)
    return size


def _dims(value: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim
    )
