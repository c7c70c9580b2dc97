"""What is in a model: its interface, its calls of composites, its operators, its size."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

MODULE_DOMAIN = "ai.coreai.module"
STANDARD_DOMAIN = "ai.coreai"
COMPOSITE_DOMAINS = (STANDARD_DOMAIN, "ai.coreai.user", MODULE_DOMAIN)
"""As in ``composite_ops/declaration.py``, which imports torch; a test keeps the two equal."""

ENTRYPOINT = "coreai.entrypoint"
"""Model metadata: the name of the program."""
STATES = "coreai.states"
"""Model metadata: a JSON list of ``{"input": ..., "output": ...}``."""
RANGES = "coreai.range_constraints"
"""Model metadata: bounds of symbolic dims, ``{"seq": {"min": 1, "max": 64}}``."""
RELATIONS = "coreai.relations"
"""Model metadata: what else holds for dims, a JSON list of ``{"holds": "(seq % 8) == 0"}``."""
TARGET = "coreai.target"
"""Model metadata: what it was last optimised for."""
MINIMUM_ONNXRUNTIME = "coreai.minimum_onnxruntime"
"""Model metadata: the oldest onnxruntime that must take the file."""

CONTRIB_DOMAIN = "com.microsoft"
_CONTRIB_SINCE = {"MoE": (1, 23), "LinearAttention": (1, 25)}
_OLDEST = (1, 21)
"""The oldest onnxruntime that the files are tested with; it has the other ops of its domain."""

MOST_CALLS = 10**15
"""Counts end there: functions that call functions twice make numbers of any length."""

Dim = int | str | None
"""A fixed size, a symbolic name or expression, or nothing known."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype and dims of an input or output; prints as ``ids: int64[batch, seq]``.

    Attributes:
        name: The tensor's name in the file.
        dtype: numpy's (or ``ml_dtypes``'s) name of the dtype, ``"float32"``, ``"bfloat16"``.
        dims: One entry per axis.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]

    @property
    def type_text(self) -> str:
        """Dtype and dims without the name, ``int64[batch, seq]``."""
        return type_text(self.dtype, self.dims)

    def __str__(self) -> str:
        """Return ``name: dtype[dims]``."""
        return f"{self.name}: {self.type_text}"


@dataclass(frozen=True)
class StateInfo:
    """A state: the graph input that takes its old value, the output that gives its new one."""

    input: str
    output: str


@dataclass(frozen=True)
class Interface:
    """The user-facing interface of one entrypoint; states stand apart from inputs and outputs."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[TensorInfo, ...]


def type_text(dtype: str, dims: tuple[Dim, ...]) -> str:
    """Return ``float32[batch, 4]``; an unknown dim prints as ``?``."""
    return f"{dtype}[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def dtype_name(onnx_name: str) -> str:
    """Return the numpy name of an ONNX element type: ``"FLOAT"`` becomes ``"float32"``.

    Raises:
        ValueError: If ONNX has no such type.
    """
    dtype = ir.DataType.__members__.get(onnx_name.upper())
    if dtype is None:
        raise ValueError(f"{onnx_name!r} is not an ONNX element type")
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return dtype.name.lower()
    return str(dtype.numpy().name)


def read_states(metadata: Mapping[str, str]) -> tuple[StateInfo, ...]:
    """Read the states from a model's metadata (key ``STATES``)."""
    entries = json.loads(metadata.get(STATES) or "[]")
    return tuple(StateInfo(entry["input"], entry["output"]) for entry in entries)


def interface(model: ir.Model) -> Interface:
    """Return inputs, outputs and states of a model, in the order of the file."""
    states = read_states(model.metadata_props)
    olds, news = {s.input for s in states}, {s.output for s in states}
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    by_name = {value.name: value for value in model.graph.inputs}
    return Interface(
        inputs=tuple(_info(value) for value in inputs if value.name not in olds),
        outputs=tuple(_info(value) for value in model.graph.outputs if value.name not in news),
        states=tuple(_info(by_name[state.input]) for state in states if state.input in by_name),
    )


def op_name(domain: str, op_type: str) -> str:
    """Return ``Add`` for an ONNX operator and ``ai.coreai::rms_norm`` for any other."""
    return f"{domain}::{op_type}" if domain else op_type


def composite_calls(model: ir.Model) -> dict[str, int]:
    """Count the calls of composites and modules, through every function body.

    A call inside a function counts as often as that function is called, up to ``MOST_CALLS``.

    Returns:
        Name (``ai.coreai::rms_norm``) to count, most frequent first.
    """
    counts = _count(model, expand=frozenset(model.functions))
    mine = {op: n for op, n in counts.items() if op[0] in COMPOSITE_DOMAINS}
    return _named(mine)


def standard_op_types(model: ir.Model) -> list[str]:
    """Return the op types of the standard composites that a model calls anywhere, sorted."""
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    nodes = (node for graph in graphs for node in graph.all_nodes())
    return sorted({node.op_type for node in nodes if node.domain == STANDARD_DOMAIN})


def contrib_needs(model: ir.Model) -> str:
    """Return the oldest onnxruntime that has the model's ops of its own domain, ``"1.25"``.

    Measured with 1.21.1, 1.23.2, 1.24.4, 1.25.1, 1.28.0, 1.29.0, 1.30.0 and 1.31.1; empty without
    such ops.
    """
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    nodes = [node for graph in graphs for node in graph.all_nodes()]
    found = [_contrib_since(node) for node in nodes if node.domain == CONTRIB_DOMAIN]
    return ".".join(map(str, max(found))) if found else ""


def _contrib_since(node: ir.Node) -> tuple[int, int]:
    if node.op_type == "GroupQueryAttention":
        if "causal" in node.attributes:
            return (1, 30)
        return (1, 23) if len(node.inputs) > 9 else _OLDEST  # a bias
    return _CONTRIB_SINCE.get(node.op_type, _OLDEST)


def op_histogram(model: ir.Model) -> dict[str, int]:
    """Count operators as a reader of the model sees them.

    A composite counts as one operator; a plain externalised module (``ai.coreai.module``) is
    looked into.

    Returns:
        Name to count, most frequent first.
    """
    modules = frozenset(key for key in model.functions if key[0] == MODULE_DOMAIN)
    counts = _count(model, expand=modules)
    return _named({op: n for op, n in counts.items() if op[0] != MODULE_DOMAIN})


def initializers(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every initializer of the main graph and its subgraphs."""
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.initializers.values()


def weights(model: ir.Model) -> tuple[int, int]:
    """Return (elements, bytes) of all initializers; one tensor used twice counts once."""
    tensors = {
        id(v.const_value): v.const_value for v in initializers(model) if v.const_value is not None
    }
    elements = sum(math.prod(tensor.shape.numpy()) for tensor in tensors.values())
    return elements, sum(tensor.nbytes for tensor in tensors.values())


_Op = tuple[str, str]


def _count(model: ir.Model, *, expand: frozenset[ir.OperatorIdentifier]) -> Counter[_Op]:
    """Count calls from the main graph, adding the body of each call named in ``expand``."""
    times: Counter[ir.OperatorIdentifier] = Counter()
    counts: Counter[_Op] = Counter()

    def add(body: Mapping[ir.OperatorIdentifier, int], calls: int) -> None:
        for key, count in body.items():
            counts[key[0], key[1]] = min(counts[key[0], key[1]] + count * calls, MOST_CALLS)
            if key in expand:
                times[key] = min(times[key] + count * calls, MOST_CALLS)

    main = _ops(model.graph)
    bodies = {key: _ops(model.functions[key]) for key in expand}
    add(main, 1)
    for key in _callers_first(main, bodies):
        add(bodies[key], times[key])
    return counts


def _ops(graph: ir.Graph | ir.Function) -> Counter[ir.OperatorIdentifier]:
    return Counter(node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(graph))


def _callers_first(
    main: Mapping[ir.OperatorIdentifier, int],
    bodies: Mapping[ir.OperatorIdentifier, Mapping[ir.OperatorIdentifier, int]],
) -> list[ir.OperatorIdentifier]:
    """Return the functions that are called, each after those that call it.

    Functions that call each other in a circle, which ONNX forbids, come in some order.
    """
    finished: list[ir.OperatorIdentifier] = []
    seen: set[ir.OperatorIdentifier] = set()
    stack = [iter(main)]
    names: list[ir.OperatorIdentifier] = []
    while stack:
        key = next((k for k in stack[-1] if k in bodies and k not in seen), None)
        if key is not None:
            seen.add(key)
            names.append(key)
            stack.append(iter(bodies[key]))
            continue
        stack.pop()
        if names:
            finished.append(names.pop())
    return finished[::-1]


def _named(counts: Mapping[_Op, int]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {op_name(*op): count for op, count in ordered}


def _info(value: ir.Value) -> TensorInfo:
    dtype = dtype_name(value.dtype.name) if value.dtype is not None else "undefined"
    shape = value.shape if value.shape is not None else ()
    dims = tuple(dim if isinstance(dim, int) else dim.value for dim in shape)
    return TensorInfo(value.name or "", dtype, dims)
