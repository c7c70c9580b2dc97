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
COMPLEX = "coreai.complex"
"""Model metadata: a JSON list of the inputs and outputs that are complex, stored as pairs."""
TARGET = "coreai.target"
"""Model metadata: what it was last optimised for."""
MINIMUM_ONNXRUNTIME = "coreai.minimum_onnxruntime"
"""Model metadata: the oldest onnxruntime that must take the file."""

CONTRIB_DOMAIN = "com.microsoft"
_CONTRIB_SINCE = {"MoE": (1, 23), "LinearAttention": (1, 25)}
_OLDEST = (1, 21)
"""The oldest onnxruntime that the files are tested with; it has the other ops of its domain."""

_COMPLEX_DTYPES = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}

Dim = int | str | None
"""A fixed size, a symbolic name or expression, or nothing known."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype and dims of an input or output; prints as ``ids: int64[batch, seq]``.

    Attributes:
        name: The tensor's name in the file.
        dtype: numpy's (or ``ml_dtypes``'s) name of the dtype, ``"float32"``, ``"bfloat16"``. A
            complex tensor, which the file has as pairs of real numbers, is ``"complex64"``,
            ``"complex128"``, or ``"complex32"``, which numpy lacks.
        dims: One entry per axis; without the axis of the pairs of a complex tensor.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]

    @property
    def is_complex(self) -> bool:
        """Whether the tensor is complex, and the file has it as pairs on a last axis of size 2."""
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


def read_complex(metadata: Mapping[str, str]) -> frozenset[str]:
    """Read which inputs and outputs are complex from a model's metadata (key ``COMPLEX``).

    Raises:
        TypeError: If it is not a list of names.
        ValueError: If it is not JSON.
    """
    names = json.loads(metadata.get(COMPLEX) or "[]")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("it is not a list of names")
    return frozenset(names)


def as_complex(info: TensorInfo) -> TensorInfo:
    """Return the complex tensor that pairs of real numbers stand for.

    Raises:
        ValueError: If the tensor does not hold pairs of float16, float32 or float64.
    """
    if info.dtype not in _COMPLEX_DTYPES or info.dims[-1:] != (2,):
        raise ValueError(f"{info} does not hold the pairs of a complex tensor")
    return TensorInfo(info.name, _COMPLEX_DTYPES[info.dtype], info.dims[:-1])


def interface(model: ir.Model) -> Interface:
    """Return inputs, outputs and states of a model, in the order of the file.

    Raises:
        ValueError: If the metadata says that a tensor is complex which does not hold pairs.
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

    A call inside a function counts as often as that function is called.

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
    done: dict[ir.OperatorIdentifier, Counter[_Op]] = {}

    def total(graph: ir.Graph | ir.Function) -> Counter[_Op]:
        counts: Counter[_Op] = Counter()
        for node in ir.traversal.RecursiveGraphIterator(graph):
            counts[node.domain, node.op_type] += 1
            key = node.op_identifier()
            if key in expand:
                if key not in done:
                    done[key] = total(model.functions[key])
                counts.update(done[key])
        return counts

    return total(model.graph)


def _named(counts: Mapping[_Op, int]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {op_name(*op): count for op, count in ordered}


def _stored_info(value: ir.Value) -> TensorInfo:
    dtype = dtype_name(value.dtype.name) if value.dtype is not None else "undefined"
    shape = value.shape if value.shape is not None else ()
    dims = tuple(dim if isinstance(dim, int) else dim.value for dim in shape)
    return TensorInfo(value.name or "", dtype, dims)
