"""Contents of a model: its interface, composite calls, operators and size."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

MODULE_DOMAIN = "ai.coreai.module"
STANDARD_DOMAIN = "ai.coreai"
COMPOSITE_DOMAINS = (STANDARD_DOMAIN, "ai.coreai.user", MODULE_DOMAIN)
"""Same as in ``composite_ops/declaration.py``, which imports torch; a test compares the two."""

ENTRYPOINT = "coreai.entrypoint"
"""Model metadata: the name of the program."""
STATES = "coreai.states"
"""Model metadata: a JSON list of ``{"input": ..., "output": ...}``."""
RANGES = "coreai.range_constraints"
"""Model metadata: bounds of symbolic dims, ``{"seq": {"min": 1, "max": 64}}``."""
RELATIONS = "coreai.relations"
"""Model metadata: further conditions on dims, a JSON list of ``{"holds": "(seq % 8) == 0"}``."""
RELATION_LIMIT = 4096
"""Maximum number of characters of a condition; the converter writes about a hundred."""
COMPLEX = "coreai.complex"
"""Model metadata: a JSON list of the inputs and outputs that are complex, stored as pairs."""
TARGET = "coreai.target"
"""Model metadata: the target that the model was last optimized for."""
MINIMUM_ONNXRUNTIME = "coreai.minimum_onnxruntime"
"""Model metadata: the oldest onnxruntime that must be able to run the file."""

CONTRIB_DOMAIN = "com.microsoft"
_CONTRIB_SINCE = {"MoE": (1, 23), "LinearAttention": (1, 25)}
_OLDEST = (1, 21)
"""The oldest onnxruntime that the files are tested with; it has all other ops of its domain."""

_COMPLEX_DTYPES = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
MOST_CALLS = 10**15
"""Upper limit of counts: nested functions that call each function twice grow exponentially."""

Dim = int | str | None
"""A fixed size, a symbolic name or expression, or None if unknown."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype and dims of an input or output; prints as ``ids: int64[batch, seq]``.

    Attributes:
        name: The tensor's name in the file.
        dtype: The numpy (or ``ml_dtypes``) name of the dtype, ``"float32"``, ``"bfloat16"``. A
            complex tensor, which the file stores as pairs of real numbers, is ``"complex64"``,
            ``"complex128"``, or ``"complex32"``, which numpy lacks.
        dims: One entry per axis. The pair axis of a complex tensor is left out.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]

    @property
    def is_complex(self) -> bool:
        """Whether the tensor is complex; the file stores it as pairs on a last axis of size 2."""
        return self.dtype.startswith("complex")

    @property
    def numpy_dtype(self) -> str:
        """Name of the dtype of the tensor's arrays: complex64 for complex32, which numpy lacks."""
        return "complex64" if self.dtype == "complex32" else self.dtype

    @property
    def type_text(self) -> str:
        """Dtype and dims without the name, ``int64[batch, seq]``."""
        return type_text(self.dtype, self.dims)

    def __str__(self) -> str:
        """Return ``name: dtype[dims]``."""
        return f"{self.name}: {self.type_text}"


@dataclass(frozen=True)
class StateInfo:
    """A state: the graph input that takes its old value and the output that returns the new one."""

    input: str
    output: str


@dataclass(frozen=True)
class Interface:
    """The user-facing interface of one entrypoint; states are separate from inputs and outputs."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[TensorInfo, ...]


def type_text(dtype: str, dims: tuple[Dim, ...]) -> str:
    """Return ``float32[batch, 4]``; an unknown dim prints as ``?``."""
    return f"{dtype}[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def dtype_name(onnx_name: str) -> str:
    """Return the numpy name of an ONNX element type: ``"FLOAT"`` becomes ``"float32"``.

    Raises:
        ValueError: If ONNX does not define such a type.
    """
    dtype = ir.DataType.__members__.get(onnx_name.upper())
    if dtype is None:
        raise ValueError(f"{onnx_name!r} is not an ONNX element type")
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return dtype.name.lower()
    return str(dtype.numpy().name)


def read_states(metadata: Mapping[str, str]) -> tuple[StateInfo, ...]:
    """Read the states from a model's metadata (key ``STATES``).

    Raises:
        ValueError: The entry has another form.
    """
    entries = _entries(metadata, STATES, "input", "output")
    return tuple(StateInfo(entry["input"], entry["output"]) for entry in entries)


def read_ranges(metadata: Mapping[str, str]) -> dict[str, tuple[int | None, int | None]]:
    """Read the minimum and maximum of symbolic dims (key ``RANGES``); None means no bound.

    Raises:
        ValueError: The entry has another form.
    """
    ranges = _json(metadata.get(RANGES) or "{}")
    if not isinstance(ranges, dict):
        raise ValueError(f"a {type(ranges).__name__} is no mapping of dims to bounds")
    return {name: (_bound(name, b, "min"), _bound(name, b, "max")) for name, b in ranges.items()}


def read_relations(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Read conditions on dims (key ``RELATIONS``), each with its source line; empty if unknown.

    Raises:
        ValueError: The entry has another form, or a condition has more than `RELATION_LIMIT`
            characters.
    """
    entries = _entries(metadata, RELATIONS, "holds")
    long = max((len(entry["holds"]) for entry in entries), default=0)
    if long > RELATION_LIMIT:
        raise ValueError(f"a condition has {long} characters, at most {RELATION_LIMIT} are read")
    return tuple((entry["holds"], str(entry.get("source", ""))) for entry in entries)


def _entries(metadata: Mapping[str, str], key: str, *texts: str) -> list[dict[str, Any]]:
    """Read a JSON list of objects that have the given string fields."""
    entries = _json(metadata.get(key) or "[]")
    if not isinstance(entries, list):
        raise ValueError(f"a {type(entries).__name__} is no list")
    for entry in entries:
        for name in texts:
            if not isinstance(entry, dict) or not isinstance(entry.get(name), str):
                raise ValueError(f"the entry {entry!r:.80} has no text {name!r}")
    return entries


def _bound(name: str, bounds: object, key: str) -> int | None:
    if not isinstance(bounds, dict):
        raise ValueError(f"the bounds of {name!r} are {bounds!r:.80}")
    bound = bounds.get(key)
    if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool)):
        raise ValueError(f"{key} of {name!r} is {bound!r:.80}, not a whole number")
    return bound


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_complex(metadata: Mapping[str, str]) -> frozenset[str]:
    """Read which inputs and outputs are complex from a model's metadata (key ``COMPLEX``).

    Raises:
        ValueError: The entry has another form.
    """
    names = _json(metadata.get(COMPLEX) or "[]")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it is not a list of names")
    return frozenset(names)


def as_complex(info: TensorInfo) -> TensorInfo:
    """Return the description of the complex tensor that a tensor of pairs represents.

    Raises:
        ValueError: If the tensor does not hold pairs of float16, float32 or float64.
    """
    if info.dtype not in _COMPLEX_DTYPES or info.dims[-1:] != (2,):
        raise ValueError(f"{info} does not hold the pairs of a complex tensor")
    return TensorInfo(info.name, _COMPLEX_DTYPES[info.dtype], info.dims[:-1])


def interface(model: ir.Model) -> Interface:
    """Return inputs, outputs and states of a model, in the order of the file.

    Raises:
        ValueError: If the metadata lists a tensor as complex that does not hold pairs.
    """
    states, pairs = read_states(model.metadata_props), read_complex(model.metadata_props)

    def described(value: ir.Value) -> TensorInfo:
        info = _stored_info(value)
        return as_complex(info) if info.name in pairs else info

    olds, news = {s.input for s in states}, {s.output for s in states}
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    by_name = {value.name: value for value in model.graph.inputs}
    return Interface(
        inputs=tuple(described(value) for value in inputs if value.name not in olds),
        outputs=tuple(described(value) for value in model.graph.outputs if value.name not in news),
        states=tuple(described(by_name[state.input]) for state in states if state.input in by_name),
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
    """Return the oldest onnxruntime that has all ``com.microsoft`` ops of the model, ``"1.25"``.

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

    A composite counts as one operator. A plain externalized module (``ai.coreai.module``) counts
    as the operators in its body.

    Returns:
        Name to count, most frequent first.
    """
    modules = frozenset(key for key in model.functions if key[0] == MODULE_DOMAIN)
    counts = _count(model, expand=modules)
    return _named({op: n for op, n in counts.items() if op[0] != MODULE_DOMAIN})


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph, the function bodies, and every graph in an attribute."""
    roots = [model.graph]
    for function in model.functions.values():
        roots.append(function.graph)
        for default in function.attributes.values():
            roots += attribute_graphs(default)
    for root in roots:
        yield root
        yield from root.subgraphs()


def attribute_graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    """Return the graphs that an attribute holds; empty if it has another type."""
    if attribute.is_ref() or attribute.value is None:
        return ()
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else ()


def initializers(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every initializer of every graph, function bodies included."""
    for graph in graphs(model):
        yield from graph.initializers.values()


def weights(model: ir.Model) -> tuple[int, int]:
    """Return (elements, bytes) of all initializers; a tensor that is used twice counts once."""
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
    """Return the functions that are called, each after its callers.

    Recursive functions, which ONNX forbids, are returned in an unspecified order.
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


def _stored_info(value: ir.Value) -> TensorInfo:
    dtype = dtype_name(value.dtype.name) if value.dtype is not None else "undefined"
    shape = value.shape if value.shape is not None else ()
    dims = tuple(dim if isinstance(dim, int) else dim.value for dim in shape)
    return TensorInfo(value.name or "", dtype, dims)
