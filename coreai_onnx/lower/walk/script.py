"""Runs onnxscript functions with our builder: their ops become nodes of the current graph.

A compiled function that a user registers (``@onnxscript.script()``) becomes a model function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxscript
import sympy
import torch
from onnxscript import evaluator

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, ir_dtype, promoted_dtype, real_part
from coreai_onnx.lower.walk.binding import bind_by_name
from coreai_onnx.lower.walk.registry import Lowering
from coreai_onnx.model.standard.op_schemas import schema_of


class Tensor:
    """The view of a value in onnxscript code: shape, dtype, rank and operators."""

    def __init__(self, op: OpBuilder, value: Value) -> None:
        """Wrap a value; operators create nodes with the builder."""
        self.op, self.value = op, value

    @property
    def shape(self) -> ir.Shape | None:
        """The shape, with symbolic dims; None if it is unknown."""
        return self.value.shape

    @shape.setter
    def shape(self, shape: ir.Shape) -> None:
        self.value.shape = shape

    @property
    def rank(self) -> int | None:
        """The number of axes; None if it is unknown."""
        return None if self.value.shape is None else len(self.value.shape)

    @property
    def dtype(self) -> ir.DataType | None:
        """The ONNX dtype."""
        return self.value.dtype

    @dtype.setter
    def dtype(self, dtype: ir.DataType) -> None:
        self.value.dtype = dtype

    @property
    def type(self) -> Any:
        """The ONNX type."""
        return self.value.type

    @property
    def const_value(self) -> Any:
        """The value if it is constant, or None."""
        return self.value.const_value

    def __bool__(self) -> bool:
        """Return the truth of a constant; other values are only known when the model runs."""
        if self.value.const_value is None:
            raise TypeError(f"{self.value.name} is not known before the model runs")
        return bool(self.value.const_value.numpy())

    def __getitem__(self, index: int) -> Tensor:
        """Return one slice of the first axis."""
        if not isinstance(index, int):
            raise TypeError(f"onnxscript code indexes with {index!r}")
        return Tensor(self.op, self.op.Gather(self.value, self.op.const(index), axis=0))

    def __mod__(self, other: Any) -> Any:
        """Remainder: the sign of the dividend for floats, of the divisor for integers."""
        # ONNX allows fmod=0 for integers only.
        floating = self.value.dtype is not None and self.value.dtype.is_floating_point()
        return self._binary("Mod", self, other, fmod=1 if floating else 0)

    def _binary(self, op_type: str, a: Any, b: Any, **attributes: Any) -> Tensor:
        result: Tensor = Recorder(self.op).record(op_type, [a, b], attributes)
        return result

    def __neg__(self) -> Tensor:
        """Negation."""
        return Tensor(self.op, self.op.Neg(self.value))

    def __ne__(self, other: object) -> Any:
        """Elementwise inequality."""
        equal = self._binary("Equal", self, other)
        return Tensor(self.op, self.op.Not(equal.value))

    def __hash__(self) -> int:
        """Hash by identity."""
        # `==` appends a node, so sets and dictionaries need another equality.
        return id(self)


def _operator(op_type: str, *, reflected: bool = False) -> Callable[[Tensor, Any], Tensor]:
    def apply(self: Tensor, other: Any) -> Tensor:
        operands = (other, self) if reflected else (self, other)
        return self._binary(op_type, *operands)

    return apply


_OPERATORS = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "truediv": "Div",
    "pow": "Pow",
    "matmul": "MatMul",
    "and": "And",
    "or": "Or",
}
_COMPARISONS = {
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
for _name, _op_type in _OPERATORS.items():
    setattr(Tensor, f"__{_name}__", _operator(_op_type))
    setattr(Tensor, f"__r{_name}__", _operator(_op_type, reflected=True))
for _name, _op_type in _COMPARISONS.items():
    setattr(Tensor, f"__{_name}__", _operator(_op_type))


class Recorder(evaluator.Evaluator):
    """Evaluates onnxscript ops by appending nodes.

    Args:
        op: Creates the nodes.
    """

    def __init__(self, op: OpBuilder) -> None:
        """Record into the builder's graph."""
        self.op = op

    def eval_op(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Append a node for an op that onnxscript code calls."""
        if op.opset.domain:
            inputs = [self._value(unwrap(a)) for a in args]
            results = self.op.call(op.opset.domain, op.name, inputs, kwargs)
            return Tensor(self.op, results[0])
        if op.name == "Constant":
            return Tensor(self.op, self._constant(kwargs))
        schema = self.op.schema(op.name)
        operands, attributes = list(args), dict(kwargs)
        # onnxscript code may pass inputs by keyword; a node has them by position.
        for i, parameter in enumerate(schema.inputs):
            if parameter.name in attributes:
                operands += [None] * (i + 1 - len(operands))
                operands[i] = attributes.pop(parameter.name)
        return self.record(op.name, operands, attributes)

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Inline a function: its Python code runs on wrapped values."""
        return function.function(*args, **kwargs)

    def record(self, op_type: str, args: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        """Append a node; operands with the same type variable are cast to one dtype."""
        schema = self.op.schema(op_type)
        if any(t.startswith("seq(") for t in _types(schema)):
            raise LoweringError(f"an onnxscript function uses a sequence of tensors: {op_type}")
        operands = self._aligned(schema, [unwrap(a) for a in args])
        plain = {k: _attribute(v) for k, v in attributes.items() if v is not None}
        count = _output_count(schema, operands, plain)
        results = tuple(
            Tensor(self.op, r) for r in self.op.node_outputs(op_type, operands, plain, count)
        )
        return results[0] if count == 1 else results

    def _aligned(self, schema: onnx.defs.OpSchema, operands: list[Any]) -> list[Any]:
        """Cast operands with the same type variable to torch's result type."""
        by_type: dict[str, list[int]] = {}
        for i, x in enumerate(operands):
            formal = schema.inputs[min(i, len(schema.inputs) - 1)]
            # Heterogeneous variadic inputs, as those of Loop, keep their own dtypes.
            if isinstance(x, ir.Value) and x.dtype is not None and formal.is_homogeneous:
                by_type.setdefault(formal.type_str, []).append(i)
        for places in by_type.values():
            values = [operands[i] for i in places]
            if len({v.dtype for v in values}) > 1:
                joined = promoted_dtype(*values)
                for i, v in zip(places, values, strict=True):
                    operands[i] = self.op.cast(v, joined)
        return operands

    def _constant(self, attributes: Mapping[str, Any]) -> Value:
        name, value = next((k, v) for k, v in attributes.items() if v is not None)
        value = _attribute(value)
        if isinstance(value, ir.TensorProtocol):
            return self.op.const(value.numpy())
        kinds = {"int": torch.int64, "float": torch.float32}
        kind = kinds.get(name.removeprefix("value_").rstrip("s"))
        if kind is None:
            raise LoweringError(f"an onnxscript function makes a constant of {name}")
        return self.op.const(value, kind)

    def _value(self, x: Any) -> Value | None:
        return x if x is None or isinstance(x, ir.Value) else self.op.const(x)


def inlined(function: Any) -> Lowering:
    """Return an onnxscript function as a lowering that inlines it.

    Arguments are bound to parameters by name, or by position if names differ. For an argument that
    is None, the parameter's default is used.
    """
    python = getattr(function, "func", None) or getattr(function, "function", function)

    def lower(op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        arguments = bind_by_name(python, args, kwargs)
        wrapped = {k: wrap(op, v) for k, v in arguments.items()}
        with evaluator.default_as(Recorder(op)):
            return unwrap(python(**{k: v for k, v in wrapped.items() if v is not _ABSENT}))

    return lower


class ScriptLowering:
    """A compiled onnxscript function as a lowering; it becomes a function of the model.

    Args:
        function: The compiled function.
    """

    def __init__(self, function: onnxscript.OnnxFunction[Any, Any]) -> None:
        """Collect the function and those it calls."""
        self.function = function
        called = function.function_ir.get_called_functions()
        self._protos = [f.to_function_proto() for f in (function, *called.values())]

    def functions_at(self, opset: int) -> list[ir.Function]:
        """Return the function and those it calls for a model of an opset.

        Raises:
            LoweringError: If an operator that it uses differs at that opset.
        """
        return [_at_opset(proto, opset) for proto in self._protos]

    def __call__(self, op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        """Call the function: tensors and numbers are inputs, attributes are set on the node."""
        arguments = bind_by_name(self.function.function, args, kwargs)
        inputs: list[Value | None] = []
        attributes: dict[str, Any] = {}
        signature = self.function.op_signature
        for parameter in signature.params if signature is not None else ():
            value = arguments.get(parameter.name)
            if parameter.is_param():
                inputs.append(self._input(op, value))
            elif value is not None:
                attributes[parameter.name] = _attribute(value)
        proto = self._protos[0]
        outputs = op.call(proto.domain, proto.name, inputs, attributes, len(proto.output))
        return outputs[0] if len(outputs) == 1 else outputs

    @staticmethod
    def _input(op: OpBuilder, x: Any) -> Value | None:
        if x is None or isinstance(x, ir.Value):
            return x
        return op.dim(x) if isinstance(x, sympy.Basic) else op.const(x)


def _at_opset(proto: onnx.FunctionProto, opset: int) -> ir.Function:
    """Return the function with the model's opset, at which its ops must have the same meaning."""
    function = ir.serde.deserialize_function(proto)
    written = function.opset_imports.get("", opset)
    for node in function.all_nodes():
        if node.domain == "" and _form(node.op_type, written) != _form(node.op_type, opset):
            raise LoweringError(
                f"onnxscript function {function.name} uses {node.op_type} of opset {written}, "
                f"which is defined differently in opset {opset}",
                advice=f"write it with onnxscript.opset{opset}, or convert to opset {written}",
            )
    function.opset_imports[""] = opset
    return function


def _form(op_type: str, opset: int) -> tuple[list[str], set[str]] | None:
    """Return the inputs of an operator at an opset and its attributes."""
    # Not the version of the schema: most new versions only add dtypes.
    schema = schema_of(op_type, opset)
    return None if schema is None else ([p.name for p in schema.inputs], set(schema.attributes))


def as_lowering(function: Any) -> Lowering:
    """Return an onnxscript function as a lowering.

    A function compiled by ``@onnxscript.script()`` becomes a function of the model; a traced-only
    function is inlined.
    """
    if isinstance(function, onnxscript.OnnxFunction):
        return ScriptLowering(function)
    return inlined(function)


# Unlike None, this is never the value of an argument.
_ABSENT = object()


def wrap(op: OpBuilder, x: Any) -> Any:
    """Return an argument in the form that onnxscript code expects."""
    if isinstance(x, ir.Value):
        return Tensor(op, x)
    if isinstance(x, sympy.Basic):
        return Tensor(op, op.dim(x))
    if isinstance(x, torch.dtype):
        return int(ir_dtype(real_part(x)))
    # They have no meaning in ONNX, and the functions of torchlib have defaults for them.
    if isinstance(x, torch.device | torch.layout | torch.memory_format | torch.Generator):
        return _ABSENT
    if isinstance(x, list | tuple):
        return [wrap(op, e) for e in x]
    return x


def unwrap(x: Any) -> Any:
    """Return the values of wrapped tensors, also in lists and tuples."""
    if isinstance(x, Tensor):
        return x.value
    if isinstance(x, list | tuple):
        return [unwrap(e) for e in x]
    return x


def _attribute(value: Any) -> Any:
    """Return an attribute's value in the form that onnx_ir expects."""
    if isinstance(value, ir.Attr):
        return value.value
    if isinstance(value, onnx.TensorProto):
        return ir.from_proto(value)
    if isinstance(value, np.ndarray):
        return ir.tensor(value)
    if isinstance(value, torch.dtype):
        return int(ir_dtype(real_part(value)))
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Tensor | onnxscript.OnnxFunction | sympy.Basic | ir.Value):
        raise LoweringError(
            f"an onnxscript function takes an attribute that is not a constant: {value!r}"
        )
    return value


def _types(schema: onnx.defs.OpSchema) -> list[str]:
    """Return one allowed type per input and output, consistently sequences or tensors."""
    constraints = {c.type_param_str: list(c.allowed_type_strs) for c in schema.type_constraints}
    formal = {p.type_str for p in (*schema.inputs, *schema.outputs)}
    return [constraints.get(t, [t])[0] for t in formal]


def _output_count(
    schema: onnx.defs.OpSchema, operands: Sequence[Any], attributes: Mapping[str, Any]
) -> int:
    """Return the number of outputs of a call, optional ones included."""
    # The schema has one variadic output, which does not show how many a call has.
    if schema.name == "Split":
        if "num_outputs" in attributes:
            return int(attributes["num_outputs"])
        sizes: Any = operands[1]
        if isinstance(sizes, ir.Value):
            sizes = sizes.meta["holds"] if sizes.const_value is None else sizes.const_value.numpy()
        return len(sizes)
    if schema.name == "BatchNormalization":
        return 3 if attributes.get("training_mode") else 1  # with the running mean and variance
    return len(schema.outputs)


__all__ = ["Recorder", "ScriptLowering", "Tensor", "as_lowering", "inlined", "wrap"]
