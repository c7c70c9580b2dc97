"""Decides which nodes of a model compute in 16 bits, and which keep float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.standard.model_protos import subgraphs
from coreai_onnx.model.standard.model_types import ModelTypes, Type
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS, RANDOM_OPS, schema_of
from coreai_onnx.quantization.half.bodies import is_control_flow, matching, receivers
from coreai_onnx.quantization.half.magnitudes import Label, module_function
from coreai_onnx.quantization.half.values import Values, element, fault
from coreai_onnx.targets.contrib import computes_half, narrow_outputs
from coreai_onnx.targets.legalize import compute_dtype

_FLOAT = onnx.TensorProto.FLOAT
_WIDE_OPS = frozenset(
    """Pow Exp Log Reciprocal Tan Acos Asin Cosh Sinh CumSum ReduceSum ReduceMean ReduceProd
    ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp""".split()
)
"""Ops that torch.autocast computes in float32 as well, without those that accumulate so anyway
(https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32)."""
# An attribute sets the dtype of some of them; scales and spectra of the others need float32.
_FIXED_OPS = frozenset(
    """QuantizeLinear DequantizeLinear DynamicQuantizeLinear EyeLike DFT STFT MelWeightMatrix
    HannWindow HammingWindow BlackmanWindow""".split()
).union(RANDOM_OPS)
# float16 counts without gaps up to 2048 only, bfloat16 up to 256.
_POSITION_OPS = frozenset(
    """Add Sub Mul Div Neg Sin Cos Exp Log Pow Floor Ceil Unsqueeze Squeeze Reshape Expand Transpose
    Concat Slice Tile Identity Where MatMul Einsum Cast Range Min Max Clip""".split()
)
"""Ops through which positions, counts and masks that are made of integers keep float32."""
# Positions meet scalars and rows of frequencies; constants with more elements are weights.
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
        values: The values, and the graphs that are converted.
        kept: Nodes of these graphs, with the reason.
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
        self.values = Values(model, dtype, keep, magnitudes, isolated.functions)
        self.used: set[str] = set()
        self.kept = {n: Reason(f"matches {p!r}") for n, p in isolated.calls.items()}
        self._positions: set[ir.Value] = set()
        self._bodies: dict[tuple[object, ...], tuple[bool, ...] | None] = {}
        for root in self.values.roots:
            for node in root:
                self._decide(node)

    def half_inputs(self, node: ir.Node) -> list[bool]:
        """Return which inputs of a standard op, composite or loop become 16 bits."""
        if is_control_flow(node) and node not in self.kept:
            return [self.values.may_be_half(value) for value in receivers(node)]
        floats = [self.values.is_float(value) for value in node.inputs]
        if node in self.kept or node.domain not in ONNX_DOMAINS:
            return [node not in self.kept and is_float for is_float in floats]
        # A fixed type, ``tensor(float)``, stays; only a type variable can stand for 16 bits.
        return [f and "(" not in v for f, v in zip(floats, self._variables(node), strict=True)]

    def half_outputs(self, node: ir.Node) -> list[bool]:
        """Return which outputs of a standard op, composite, loop or branch become 16 bits."""
        if is_control_flow(node) and node not in self.kept:
            return [self.values.may_be_half(value) for value in node.outputs]
        floats = [self.values.is_float(value) for value in node.outputs]
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
        # The last output may be variadic.
        types += types[-1:] * len(floats)
        return [is_float and types[index] in bound for index, is_float in enumerate(floats)]

    # ------------------------------------------------------------------ nodes
    def _decide(self, node: ir.Node) -> None:
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            return
        values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
        # An unknown type may be float32: such a node needs a reason as well.
        inner = [one for graph in subgraphs(node) for one in graph.all_nodes()]
        if not inner and not any(
            self.values.is_float(value) or value not in self.values.known for value in values
        ):
            return
        if (reason := self._reason(node, values)) is not None:
            self.kept[node] = reason
            # A pattern that matches in a body that is kept is used: it must not be reported as a
            # mistake.
            for one in inner:
                self._pattern(one)

    def _reason(self, node: ir.Node, values: list[ir.Value]) -> Reason | None:
        """Return why a node keeps float32, or None."""
        if module_function(self.model, node) is not None:
            return None  # what keeps float32 is decided for the nodes of the function
        # What the user asks for comes first, so that the report gives this reason.
        if pattern := self._pattern(node):
            return Reason(f"matches {pattern!r}")
        if is_control_flow(node):
            return None  # the same holds for the nodes of its bodies
        if any(subgraphs(node)):
            return Reason(f"{node.op_type} keeps float32 with its body")
        # Optional outputs that nothing reads may have no type.
        read = [v for v in values if v.uses() or v.is_graph_output()]
        if any(element(self.values.known.get(v)) is None for v in read):
            return Reason("the type of a value is unknown, or is not that of a tensor")
        if self._is_position(node):
            return Reason("computes from integers, such as positions")
        if reasons := [self.values.flagged[v] for v in values if v in self.values.flagged]:
            return Reason(reasons[0])
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
        # Its constant is an attribute, which the flags of values do not see.
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
            if self.values.is_float(value) and "(" not in v
        }
        # The schema is that of the model's opset: many ops take bfloat16 only from a later one on.
        if any(f"tensor({word})" not in allowed[v] for v in floats):
            return Reason(f"ONNX does not define {op} for {word}", store=True)
        opset = self.values.opset(node)
        if any(compute_dtype(op, opset, v, self.dtype) is not None for v in floats):
            return Reason(f"onnxruntime has no {op} for {word}", store=True)
        return None

    def _pattern(self, node: ir.Node) -> str:
        patterns = matching(node, self.keep)
        self.used.update(patterns)
        return patterns[0] if patterns else ""

    def _is_position(self, node: ir.Node) -> bool:
        """Return whether a node computes floats from integers and small constants only."""
        if node.domain not in ONNX_DOMAINS or node.op_type not in _POSITION_OPS:
            return False
        floats = [v for v in node.inputs if v is not None and self.values.is_float(v)]
        source = node.op_type == "Range" or (
            node.op_type == "Cast"
            and any(_is_integer(self.values.known.get(v)) for v in node.inputs if v is not None)
        )
        derived = any(v in self._positions for v in floats)
        others = [v for v in floats if v not in self._positions]
        if not self.values.is_float(node.outputs[0]) or not (source or derived):
            return False
        if not all(
            v in self.values.constants and _size(self.values.known[v]) < _SMALL_TABLE
            for v in others
        ):
            return False
        self._positions.add(node.outputs[0])
        # A mask that is computed from positions holds the fill, and is clipped where it is read in
        # 16 bits.
        if any(v in self.values.fills for v in floats):
            self.values.fills.add(node.outputs[0])
        return True

    def _body_outputs(self, node: ir.Node) -> tuple[bool, ...] | None:
        """Return which results of a composite have 16 bits; None if its body is for float32."""
        function = self.model.functions.get(node.op_identifier())
        if function is None:
            return None
        inputs = [None if v is None else self.values.known.get(v) for v in node.inputs]
        arguments = [self._half_type(one) for one in inputs]
        # Layers share bodies, whose types are inferred once for each kind of arguments.
        key = (id(function), *(a.SerializeToString() if a else b"" for a in arguments))
        if key not in self._bodies:
            types = ModelTypes(
                lambda n: self.model.functions.get(n.op_identifier()), self.model.ir_version
            )
            inferred = types.of_function(function, arguments)
            elements = [element(inferred.get(value)) for value in function.outputs]
            valid = not types.faults and None not in elements and self._runs(function, inferred)
            self._bodies[key] = tuple(e == self.dtype for e in elements) if valid else None
        return self._bodies[key]

    def _runs(self, function: ir.Function, types: Mapping[ir.Value, Type]) -> bool:
        """Return whether onnxruntime has the ops of a body; it computes float16 in any case."""
        # onnxruntime inserts Casts around float16 ops without a kernel, but none for bfloat16.
        if self.dtype == ir.DataType.FLOAT16:
            return True
        for node in function:
            halves = [
                i for i, v in enumerate(node.inputs) if v and element(types.get(v)) == self.dtype
            ]
            if halves and node.domain not in ONNX_DOMAINS:
                return False
            variables = self._variables(node) if halves else []
            if any(
                compute_dtype(node.op_type, self.values.opset(node), variables[i], self.dtype)
                for i in halves
            ):
                return False
        return True

    def _half_type(self, value_type: Type | None) -> Type | None:
        if element(value_type) != _FLOAT:
            return value_type
        half = Type()
        half.CopyFrom(value_type)
        half.tensor_type.elem_type = int(self.dtype)
        return half

    # ------------------------------------------------------------------ schemas
    def _schema(self, node: ir.Node) -> onnx.defs.OpSchema:
        schema = schema_of(node.op_type, self.values.opset(node))
        assert schema is not None, node.op_type
        return schema

    def _variables(self, node: ir.Node) -> list[str]:
        """Return the type variable, or the fixed type with its parentheses, of each input."""
        declared = [parameter.type_str for parameter in self._schema(node).inputs]
        # The last input may be variadic.
        declared += declared[-1:] * len(node.inputs)
        return declared[: len(node.inputs)]


def _is_integer(value_type: Type | None) -> bool:
    dtype = element(value_type)
    return dtype is not None and ir.DataType(dtype).is_integer()


def _size(value_type: Type) -> int:
    dims = value_type.tensor_type.shape.dim
    # An unknown dimension counts as too large, to be safe.
    return math.prod(d.dim_value if d.HasField("dim_value") else _SMALL_TABLE for d in dims)


def _squares_to_sum(node: ir.Node) -> bool:
    """Return whether a node squares a value, as norms do before they sum."""
    return node.op_type == "Mul" and node.inputs[0] is node.inputs[1]
