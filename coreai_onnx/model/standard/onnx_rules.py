"""ONNX's rules for nodes, applied to protos: op schemas, and inference of types and shapes.

The protos contain no weights: a weight is an input with a type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx.checker
import onnx.shape_inference

from coreai_onnx.model.dependencies import (
    ELEMENT_TYPES,
    ERROR_KIND,
    ERROR_LIST,
    NODE_OF_FAULT,
    NODE_PREFIX,
    UNKNOWN_TYPE,
)

_GENERATED = "unk__"
"""Prefix of the names that ONNX's inference gives to unknown sizes."""

Opsets = Mapping[str, int]


@dataclass(frozen=True)
class NodeFault:
    """A violation of the ONNX specification by a node.

    Attributes:
        number: The name of the node; nodes of these protos are named by numbers.
        what: What is wrong with it.
        outer: The number of the node whose subgraph holds the node; its own number otherwise.
    """

    number: int
    what: str
    outer: int


@dataclass
class Inferred:
    """The result of ONNX's inference.

    Attributes:
        types: Type of each value that a node of the graph produces, by name, where it is known.
        faults: The contradictions, in order.
    """

    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    faults: list[NodeFault] = field(default_factory=list)


def schema_faults(
    nodes: Sequence[onnx.NodeProto], opsets: Opsets, ir_version: int
) -> list[NodeFault]:
    """Return the nodes that violate their schemas: unknown ops, wrong arity, wrong attributes.

    Graphs in attributes are checked as graphs, so pass nodes with empty ones.
    """
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = ir_version, dict(opsets)
    scope = onnx.checker.C.LexicalScopeContext()
    try:  # checking all nodes at once takes a tenth of the time
        onnx.checker.C.check_function(_as_function(nodes, opsets), context, scope)
    except onnx.checker.ValidationError:
        return list(_faults_one_by_one(nodes, context, scope))
    return []


def _faults_one_by_one(
    nodes: Iterable[onnx.NodeProto],
    context: onnx.checker.C.CheckerContext,
    scope: onnx.checker.C.LexicalScopeContext,
) -> Iterator[NodeFault]:
    for node in nodes:
        try:
            onnx.checker.C.check_node(node.SerializeToString(), context, scope)
        except onnx.checker.ValidationError as error:
            what = NODE_PREFIX.pattern.sub("", str(error).strip().rstrip(".")).replace(
                f"'{node.name} : ", "'"
            )
            yield NodeFault(int(node.name), what, int(node.name))


def _as_function(nodes: Sequence[onnx.NodeProto], opsets: Opsets) -> bytes:
    """Return a function of the nodes; its inputs are the values they read but do not produce."""
    produced = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node.input)
    imports = [onnx.OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items()]
    inputs = [name for name in read if name and name not in produced]
    function = onnx.FunctionProto(
        name="nodes", domain="nodes", input=inputs, node=nodes, opset_import=imports
    )
    return bytes(function.SerializeToString())


def infer(
    graph: onnx.GraphProto, opsets: Opsets, ir_version: int, *, data_propagation: bool = False
) -> Inferred:
    """Infer the types and shapes of a graph, and compare them with the declared ones.

    Args:
        graph: A graph whose inputs and initializers have types and whose nodes are named by
            numbers.
        opsets: Domain to version.
        ir_version: The IR version of the model.
        data_propagation: Whether to compute the values of small shape tensors as well. ONNX then
            reports false errors, so faults are not looked for.
    """
    imports = [onnx.OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items()]
    model = onnx.ModelProto(graph=graph, opset_import=imports, ir_version=ir_version)
    proto = model.SerializeToString()
    faults: list[NodeFault] = []
    try:
        strict = not data_propagation
        return Inferred(_types(_run(proto, strict=strict, data_propagation=data_propagation)))
    except onnx.shape_inference.InferenceError as error:
        faults = _parsed(str(error))
    try:
        # In strict mode a fault leaves no types at all, so that a second run finds those of the
        # other nodes.
        return Inferred(_types(_run(proto, strict=False)), faults)
    except onnx.shape_inference.InferenceError:
        return Inferred({}, faults)


def _run(proto: bytes, *, strict: bool, data_propagation: bool = False) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(
        proto, check_type=strict, strict_mode=strict, data_prop=data_propagation
    )


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    infos = (*model.graph.value_info, *model.graph.output)
    return {info.name: info.type for info in infos if is_known(info.type)}


def _parsed(text: str) -> list[NodeFault]:
    """Parse the faults in the text of an inference error, one for each node of the graph itself."""
    faults: dict[int, NodeFault] = {}
    for line in ERROR_LIST.pattern.sub("", text).splitlines():
        places = list(NODE_OF_FAULT.pattern.finditer(line))
        if places and not UNKNOWN_TYPE.is_in(line):
            what = ERROR_KIND.pattern.sub("", line[places[-1].end() :]).strip().rstrip(".")
            what = ELEMENT_TYPES.pattern.sub(_named_dtypes, what)
            outer = int(places[0][1])
            faults.setdefault(outer, NodeFault(int(places[-1][1]), what, outer))
    return list(faults.values())


def _named_dtypes(match: re.Match[str]) -> str:
    """Return the names of two dtypes, which the inference reports as numbers."""
    inferred, declared = (onnx.TensorProto.DataType.Name(int(n)).lower() for n in match.groups())
    return f"inferred dtype is {inferred}, declared dtype is {declared}"


def is_known(kind: onnx.TypeProto) -> bool:
    """Return whether the element type of a type is known."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        return bool(getattr(kind, which).elem_type)
    return which is not None


def contradiction(inferred: onnx.TypeProto, declared: onnx.TypeProto) -> str:
    """Return how two types of one value contradict each other; empty if they do not."""
    which = inferred.WhichOneof("value")
    if which != declared.WhichOneof("value"):
        return f"is a {which}, declared as a {declared.WhichOneof('value')}"
    if which != "tensor_type":
        return ""
    actual, said = inferred.tensor_type, declared.tensor_type
    if actual.elem_type != said.elem_type:
        return f"is {_dtype(actual)}, declared as {_dtype(said)}"
    if not (actual.HasField("shape") and said.HasField("shape")):
        return ""
    if len(actual.shape.dim) != len(said.shape.dim):
        return f"has rank {len(actual.shape.dim)}, declared with rank {len(said.shape.dim)}"
    for axis, (a, b) in enumerate(zip(actual.shape.dim, said.shape.dim, strict=True)):
        if a.HasField("dim_value") and b.HasField("dim_value") and a.dim_value != b.dim_value:
            return f"has {a.dim_value} in dimension {axis}, declared with {b.dim_value}"
    return ""


def _dtype(kind: onnx.TypeProto.Tensor) -> str:
    return str(onnx.TensorProto.DataType.Name(kind.elem_type)).lower()


def rename_generated(types: Iterable[onnx.TypeProto], reserved: frozenset[str], start: int) -> int:
    """Renumber the size names that inference generated, from ``start`` on; return the next number.

    Two runs of the inference may give different sizes the same name.
    """
    names: dict[str, str] = {}
    for dim in (dim for kind in types for dim in kind.tensor_type.shape.dim):
        if dim.dim_param.startswith(_GENERATED) and dim.dim_param not in reserved:
            dim.dim_param = names.setdefault(dim.dim_param, f"{_GENERATED}{start + len(names)}")
    return start + len(names)


def without_generated(kind: onnx.TypeProto) -> onnx.TypeProto:
    """Return a type without the size names that inference generated: they are local to a graph."""
    copy = onnx.TypeProto()
    copy.CopyFrom(kind)
    for dim in copy.tensor_type.shape.dim if copy.HasField("tensor_type") else ():
        if dim.dim_param.startswith(_GENERATED):
            dim.ClearField("dim_param")
    return copy
