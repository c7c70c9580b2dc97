"""Decides which nodes of a model compute in 16 bits, and which keep float32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx
import onnx_ir as ir

from coreai_onnx.lower.legalize import compute_dtype
from coreai_onnx.model.debug_info import SCOPE
from coreai_onnx.model.inventory import STANDARD_DOMAIN, attribute_graphs
from coreai_onnx.model.model_types import ModelTypes, Type
from coreai_onnx.model.op_schemas import ONNX_DOMAINS, schema_of
from coreai_onnx.quantization.half_constants import LIMIT, fault, is_fill
from coreai_onnx.quantization.half_contrib import computes_half, narrow_outputs
from coreai_onnx.quantization.magnitudes import (
    Label,
    callers_first,
    known_types,
    module_function,
)

_FLOAT = onnx.TensorProto.FLOAT
_WIDE_OPS = frozenset(
    """Pow Exp Log Reciprocal Tan Acos Asin Cosh Sinh CumSum ReduceSum ReduceMean ReduceProd
    ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp""".split()
)
"""Ops that torch.autocast computes in float32 as well, without those that accumulate so anyway
(https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32)."""
_FIXED_OPS = frozenset(
    """QuantizeLinear DequantizeLinear DynamicQuantizeLinear EyeLike RandomNormal RandomUniform
    RandomNormalLike RandomUniformLike Bernoulli Multinomial DFT STFT MelWeightMatrix HannWindow
    HammingWindow BlackmanWindow""".split()
)
_POSITION_OPS = frozenset(
    """Add Sub Mul Div Neg Sin Cos Exp Log Pow Floor Ceil Unsqueeze Squeeze Reshape Expand Transpose
    Concat Slice Tile Identity Where MatMul Einsum Cast Range Min Max Clip""".split()
)
"""Ops through which positions, counts and masks that are made of integers keep float32."""
_PASS_SMALL = frozenset({"Add", "Max", "Clip", "Sqrt", "Reciprocal", "Pow"})
"""Ops whose results may be as small, or as large, as a constant that float16 cannot hold."""
_SMALL_TABLE = 4096


@dataclass(frozen=True)
class Reason:
    """Why a node keeps float32.

    Attributes:
        text: The reason.
        store: Whether its weights may have 16 bits all the same.
    """

    text: str
    store: bool = False


@dataclass(frozen=True)
class Isolated:
    """Calls of functions that keep float32, as copies if other calls are converted.

    Attributes:
        functions: The identifiers of the copies.
        calls: The calls that patterns select, with the pattern.
    """

    functions: set[ir.OperatorIdentifier]
    calls: dict[ir.Node, str]


class Choices:
    """What keeps float32 in a model.

    Attributes:
        known: The types of the values before.
        kept: Nodes of the main graph and of functions, with the reason.
        flagged: Values that 16 bits cannot hold, with the reason.
        fills: Values that are computed in float32 and may be as large as float32's limits.
        used: The patterns that matched.
    """

    def __init__(
        self,
        model: ir.Model,
        dtype: ir.DataType,
        keep: Sequence[str],
        magnitudes: Mapping[Label, float],
        isolated: Isolated,
    ) -> None:
        """Decide.

        Args:
            model: The model.
            dtype: ``FLOAT16`` or ``BFLOAT16``.
            keep: Patterns of module paths, names of nodes and op types.
            magnitudes: The largest magnitudes of values.
            isolated: The calls whose functions keep float32.
        """
        self.model, self.dtype, self.keep = model, dtype, keep
        self.used: set[str] = set()
        self._isolated = isolated.functions
        self.functions = [f for f in callers_first(model) if f.identifier() not in self._isolated]
        self._calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
        for node in (node for root in self.roots for node in root):
            self._calls.setdefault(node.op_identifier(), []).append(node)
        self.kept = {n: Reason(f"matches {p!r}") for n, p in isolated.calls.items()}
        self.flagged: dict[ir.Value, str] = {}
        self.fills: set[ir.Value] = set()
        self._constants: set[ir.Value] = set()
        self._positions: set[ir.Value] = set()
        self._bodies: dict[tuple[object, ...], tuple[bool, ...] | None] = {}
        self.known = known_types(model, self.functions)
        self._flag(magnitudes)
        for root in self.roots:
            for node in root:
                self._decide(node)

    @property
    def roots(self) -> list[ir.Graph | ir.Function]:
        """The main graph and the functions, each after its callers."""
        return [self.model.graph, *self.functions]

    def is_float(self, value: ir.Value | None) -> bool:
        """Return whether a value was a float32 tensor before."""
        return value is not None and element(self.known.get(value)) == _FLOAT

    def half_inputs(self, node: ir.Node) -> list[bool]:
        """Return which inputs of a standard op or composite become 16 bits."""
        floats = [self.is_float(value) for value in node.inputs]
        if node in self.kept or node.domain not in ONNX_DOMAINS:
            return [node not in self.kept and given for given in floats]
        return [f and "(" not in v for f, v in zip(floats, self._variables(node), strict=True)]

    def half_outputs(self, node: ir.Node) -> list[bool]:
        """Return which outputs of a standard op or composite become 16 bits."""
        floats = [self.is_float(value) for value in node.outputs]
        if node in self.kept:
            return [False] * len(floats)
        if node.domain == STANDARD_DOMAIN:
            return list(self._body_outputs(node) or ())
        if node.domain not in ONNX_DOMAINS:
            return narrow_outputs(node, floats)
        if node.op_type in ("Cast", "ConstantOfShape"):
            return floats
        schema = self._schema(node)
        taken = self.half_inputs(node)
        bound = {v for v, half in zip(self._variables(node), taken, strict=True) if half}
        types = [o.type_str for o in schema.outputs]
        types += types[-1:] * len(floats)
        return [given and types[index] in bound for index, given in enumerate(floats)]

    # ------------------------------------------------------------------ values
    def calls(self, function: ir.Function) -> list[ir.Node]:
        """Return the calls of a function."""
        return self._calls[function.identifier()]

    def callee(self, node: ir.Node) -> ir.Function | None:
        """Return the function of a module that a node calls and that is converted."""
        function = module_function(self.model, node)
        return None if node.op_identifier() in self._isolated else function

    def _flag(self, magnitudes: Mapping[Label, float]) -> None:
        """Flag values outside of float16's range, and pass flags between calls and functions."""
        for root in self.roots:
            if isinstance(root, ir.Function):
                self._enter(root)
            self._flag_constants(root)
            key = root.identifier() if isinstance(root, ir.Function) else None
            for value in (*root.inputs, *(v for node in root for v in node.outputs)):
                size = magnitudes.get((key, value.name or ""), 0.0)
                if size > LIMIT and self.is_float(value) and self.dtype == ir.DataType.FLOAT16:
                    self.flagged[value] = f"a value reaches {size:.3g}, above float16's 65504"
            for node in root:
                self._pass_on(node)
        for function in self.functions[::-1]:
            for index, value in enumerate(function.outputs):
                if value in self.flagged:
                    for call in self.calls(function):
                        if index < len(call.outputs):
                            self.flagged[call.outputs[index]] = self.flagged[value]

    def _flag_constants(self, root: ir.Graph | ir.Function) -> None:
        """Flag constants that 16 bits cannot hold."""
        for value, tensor in constants(root):
            self._constants.add(value)
            if not self.is_float(value):
                continue
            if why := fault(tensor, self.dtype):
                self.flagged[value] = why
            elif is_fill(tensor):
                self.fills.add(value)

    def _enter(self, function: ir.Function) -> None:
        """Give the inputs and outputs of a function what is known of its calls."""
        calls = self.calls(function)
        for index, value in enumerate(function.outputs):
            for result in (call.outputs[index] for call in calls if index < len(call.outputs)):
                if result in self.flagged:
                    self.flagged[value] = self.flagged[result]
        for index, value in enumerate(function.inputs):
            passed = [call.inputs[index] for call in calls if index < len(call.inputs)]
            if passed and all(v in self._constants for v in passed):
                self._constants.add(value)
            for given in passed:
                if given in self.flagged:
                    self.flagged[value] = self.flagged[given]

    def _pass_on(self, node: ir.Node) -> None:
        """Pass the flag of a constant to the results that are as small or as large as it."""
        causes = [self.flagged[v] for v in node.inputs if v in self.flagged]
        if causes and node.op_type in _PASS_SMALL and self.is_float(node.outputs[0]):
            self.flagged.setdefault(node.outputs[0], causes[0])

    # ------------------------------------------------------------------ nodes
    def _decide(self, node: ir.Node) -> None:
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            return
        given = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
        inner = any(attribute_graphs(a) for a in node.attributes.values())
        if not inner and not any(
            self.is_float(value) or value not in self.known for value in given
        ):
            return
        if (reason := self._reason(node, given, inner=inner)) is not None:
            self.kept[node] = reason

    def _reason(self, node: ir.Node, given: list[ir.Value], *, inner: bool) -> Reason | None:
        """Return why a node keeps float32, or None."""
        if module_function(self.model, node) is not None:
            return None  # what keeps float32 is decided for the nodes of the function
        if pattern := self._pattern(node):
            return Reason(f"matches {pattern!r}")
        if inner:
            return Reason("loops and branches keep float32")
        read = [v for v in given if v.uses() or v.is_graph_output()]
        if any(element(self.known.get(v)) is None for v in read):
            return Reason("the type of a value is unknown, or is not that of a tensor")
        if self._is_position(node):
            return Reason("computes from integers, such as positions")
        if found := [self.flagged[v] for v in given if v in self.flagged]:
            return Reason(found[0])
        if node.domain == STANDARD_DOMAIN:
            valid = self._body_outputs(node) is not None
            return None if valid else Reason("its function body is for float32")
        if node.domain not in ONNX_DOMAINS:
            if computes_half(node, self.dtype):
                return None
            return Reason(f"{node.op_type} of {node.domain} keeps float32", store=True)
        return self._standard_reason(node)

    def _standard_reason(self, node: ir.Node) -> Reason | None:
        op, word = node.op_type, self.dtype.name.lower()
        filled = node.attributes.get("value")
        if op == "ConstantOfShape" and filled and (why := fault(filled.as_tensor(), self.dtype)):
            return Reason(why)
        if op in _FIXED_OPS:
            return Reason(f"{op} keeps float32")
        if op in _WIDE_OPS or _squares_to_sum(node):
            return Reason("sums, powers and exponentials keep float32", store=True)
        schema = self._schema(node)
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        variables = self._variables(node)
        floats = {
            v
            for v, value in zip(variables, node.inputs, strict=True)
            if self.is_float(value) and "(" not in v
        }
        if any(f"tensor({word})" not in allowed[v] for v in floats):
            return Reason(f"ONNX does not define {op} for {word}", store=True)
        opset = self._opset(node)
        if any(compute_dtype(op, opset, v, self.dtype) is not None for v in floats):
            return Reason(f"onnxruntime has no {op} for {word}", store=True)
        return None

    def _pattern(self, node: ir.Node) -> str:
        names = (node.metadata_props.get(SCOPE, ""), node.name or "", node.op_type)
        found = [p for p in self.keep if any(name and fnmatchcase(name, p) for name in names)]
        self.used.update(found)
        return found[0] if found else ""

    def _is_position(self, node: ir.Node) -> bool:
        """Return whether a node computes floats from integers and small constants only."""
        if node.domain not in ONNX_DOMAINS or node.op_type not in _POSITION_OPS:
            return False
        floats = [v for v in node.inputs if v is not None and self.is_float(v)]
        source = node.op_type == "Range" or (
            node.op_type == "Cast" and _is_integer(self.known.get(node.inputs[0]))  # type: ignore[arg-type]
        )
        made = any(v in self._positions for v in floats)
        others = [v for v in floats if v not in self._positions]
        if not self.is_float(node.outputs[0]) or not (source or made):
            return False
        if not all(v in self._constants and _size(self.known[v]) < _SMALL_TABLE for v in others):
            return False
        self._positions.add(node.outputs[0])
        if any(v in self.fills for v in floats):
            self.fills.add(node.outputs[0])
        return True

    def _body_outputs(self, node: ir.Node) -> tuple[bool, ...] | None:
        """Return which results of a composite have 16 bits; None if its body is for float32."""
        function = self.model.functions.get(node.op_identifier())
        if function is None:
            return None
        given = [None if v is None else self.known.get(v) for v in node.inputs]
        arguments = [self._half_type(one) for one in given]
        key = (id(function), *(a.SerializeToString() if a else b"" for a in arguments))
        if key not in self._bodies:
            types = ModelTypes(
                lambda n: self.model.functions.get(n.op_identifier()), self.model.ir_version
            )
            found = types.of_function(function, arguments)
            elements = [element(found.get(value)) for value in function.outputs]
            valid = not types.faults and None not in elements and self._runs(function, found)
            self._bodies[key] = tuple(e == self.dtype for e in elements) if valid else None
        return self._bodies[key]

    def _runs(self, function: ir.Function, known: Mapping[ir.Value, Type]) -> bool:
        """Return whether onnxruntime has the ops of a body; it computes float16 in any case."""
        if self.dtype == ir.DataType.FLOAT16:
            return True
        for node in function:
            halves = [
                i for i, v in enumerate(node.inputs) if v and element(known.get(v)) == self.dtype
            ]
            if halves and node.domain not in ONNX_DOMAINS:
                return False
            variables = self._variables(node) if halves else []
            if any(
                compute_dtype(node.op_type, self._opset(node), variables[i], self.dtype)
                for i in halves
            ):
                return False
        return True

    def _half_type(self, given: Type | None) -> Type | None:
        if element(given) != _FLOAT:
            return given
        half = Type()
        half.CopyFrom(given)
        half.tensor_type.elem_type = int(self.dtype)
        return half

    # ------------------------------------------------------------------ schemas
    def _opset(self, node: ir.Node) -> int:
        graph = node.graph
        assert graph is not None
        return graph.opset_imports.get("", 1)

    def _schema(self, node: ir.Node) -> onnx.defs.OpSchema:
        schema = schema_of(node.op_type, self._opset(node))
        assert schema is not None, node.op_type
        return schema

    def _variables(self, node: ir.Node) -> list[str]:
        """Return the type variable, or the fixed type with its parentheses, of each input."""
        declared = [parameter.type_str for parameter in self._schema(node).inputs]
        declared += declared[-1:] * len(node.inputs)
        return declared[: len(node.inputs)]


def constants(root: ir.Graph | ir.Function) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the initializers that are no inputs, and the results of Constant nodes."""
    if isinstance(root, ir.Graph):
        for value in root.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                yield value, value.const_value
    for node in root:
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
            if tensor is not None:
                yield node.outputs[0], tensor


def element(given: Type | None) -> int | None:
    """Return the dtype of a tensor; None if it is unknown, or another type."""
    if given is None or not given.HasField("tensor_type"):
        return None
    return int(given.tensor_type.elem_type) or None


def _is_integer(given: Type | None) -> bool:
    found = element(given)
    return found is not None and ir.DataType(found).is_integer()


def _size(given: Type) -> int:
    dims = given.tensor_type.shape.dim
    return math.prod(d.dim_value if d.HasField("dim_value") else _SMALL_TABLE for d in dims)


def _squares_to_sum(node: ir.Node) -> bool:
    """Return whether a node squares a value, as norms do before they sum."""
    return node.op_type == "Mul" and node.inputs[0] is node.inputs[1]
