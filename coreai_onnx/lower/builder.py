"""Builds ONNX nodes: converts operands to values, infers dtypes, and casts to supported ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import onnx_ir as ir
import sympy
import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.inference import infer_dims
from coreai_onnx.lower.legalize import axes_from_the_front, compute_dtype
from coreai_onnx.lower.schema import OpSchema, op_schema
from coreai_onnx.lower.scope import Scope
from coreai_onnx.lower.values import (
    Dim,
    Number,
    Value,
    as_dim,
    dtype_of,
    ir_dtype,
    real_part,
    scalar_dtype,
    set_dims,
    torch_dtype,
)

if TYPE_CHECKING:
    from coreai_onnx.lower.composites import CompositeCalls

Operand: TypeAlias = Value | Number | sympy.Basic | Sequence[Any] | np.ndarray | torch.Tensor | None
_UNTYPED = {"Constant", "ConstantOfShape", "EyeLike", "RandomNormal", "RandomUniform", "Cast"}


class AttributeRef:
    """A number that a function body reads from the attribute of the calling node.

    Args:
        name: Attribute of the enclosing function.
        type: ONNX attribute type.
    """

    def __init__(self, name: str, type: Literal["int", "float", "string", "ints"]) -> None:
        """Store the name and type."""
        self.name, self.type = name, type


class OpBuilder:
    """Builds ONNX nodes: ``op.Add(x, 1)`` appends a node and returns its output value.

    Python numbers, lists and arrays among the operands become constants with the dtype of the other
    operands. Operands whose dtype has no kernel in onnxruntime are cast to one that has, and the
    result is cast back.

    Args:
        scope: The graph under construction.
        opset: Version of the ``ai.onnx`` operator set.
        composites: Receives the composite calls; None inside the body of a standard composite,
            where every op is decomposed.
    """

    def __init__(self, scope: Scope, opset: int, composites: CompositeCalls | None = None) -> None:
        """Start at the end of the scope's graph."""
        self.scope, self.opset, self.composites = scope, opset, composites

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        """Return a function that appends a node of this op type."""
        if not op_type[0].isupper():
            raise AttributeError(op_type)

        def make(*operands: Operand, _outputs: int = 1, **attributes: Any) -> Any:
            return self.node(op_type, operands, attributes, outputs=_outputs)

        return make

    def inside(self, scope: Scope) -> OpBuilder:
        """Return a builder of the same kind for a nested graph."""
        return OpBuilder(scope, self.opset, self.composites)

    # ------------------------------------------------------------------ constants and casts
    def const(
        self, value: Any, dtype: torch.dtype | ir.DataType | None = None, name: str | None = None
    ) -> Value:
        """Return a constant; ``dtype`` defaults to torch's dtype for the Python value."""
        if isinstance(value, torch.Tensor):
            array = ir.tensor(value.detach().contiguous().cpu())
            if dtype is not None and array.dtype != _as_ir(dtype):
                array = ir.tensor(value.detach().to(torch_dtype(_as_ir(dtype))).contiguous())
            return self.scope.constant(array, name)
        if isinstance(value, np.ndarray) and dtype is None:
            return self.scope.constant(ir.tensor(value), name)
        as_torch = torch_dtype(_as_ir(dtype)) if dtype is not None else None
        tensor = torch.tensor(value, dtype=as_torch)
        if dtype is None and isinstance(value, list | tuple) and not value:
            tensor = tensor.to(torch.int64)
        return self.scope.constant(ir.tensor(tensor), name)

    def like(self, x: Value, value: Number) -> Value:
        """Return a 0-d constant with the dtype of ``x``."""
        return self.const(value, x.dtype)

    def cast(self, x: Value, dtype: torch.dtype | ir.DataType) -> Value:
        """Return ``x`` cast to a dtype, or ``x`` itself if it has that dtype."""
        target = _as_ir(dtype)
        if x.dtype == target:
            return x
        result: Value = self.node("Cast", (x,), {"to": int(target)})
        return result

    # ------------------------------------------------------------------ dims
    def dim(self, x: Dim) -> Value:
        """Return a dim as a 0-d int64 value."""
        return self.scope.dims.scalar(self, x)

    def shape(self, dims: Sequence[Dim | Value]) -> Value:
        """Return a list of dims as a 1-D int64 value, a constant if all dims are known."""
        return self.scope.dims.vector(self, dims)

    def shape_of(self, x: Value) -> Value:
        """Return the shape of ``x`` as a 1-D int64 value, from its dims where they are known."""
        dims = x.meta.get("dims")
        result: Value = self.Shape(x) if dims is None else self.shape(dims)
        return result

    def reshape(self, x: Value, dims: Sequence[Dim | Value]) -> Value:
        """Return ``x`` with other dims; no node if they are the same."""
        if x.meta.get("dims") is not None and x.meta["dims"] == tuple(dims):
            return x
        target = self._reshape_target(x, dims)
        result: Value = (
            self.Reshape(x, target, allowzero=1) if 0 in dims else self.Reshape(x, target)
        )
        if not any(isinstance(d, ir.Value) for d in dims):
            set_dims(result, [as_dim(d) for d in dims])
        return result

    def _reshape_target(self, x: Value, dims: Sequence[Dim | Value]) -> Value:
        """Return the target with little arithmetic: 0 copies a leading dim, one -1 is inferred."""
        unknown = [i for i, d in enumerate(dims) if not isinstance(d, int)]
        source = x.meta.get("dims")
        if source is None or not unknown or 0 in dims:
            return self.shape(dims)
        spare: list[Dim | Value] = list(dims)
        for i in unknown:
            if i < len(source) and not isinstance(dims[i], ir.Value) and source[i] == dims[i]:
                spare[i] = 0
        left = [i for i, d in enumerate(spare) if not isinstance(d, int)]
        if len(left) > 1 or 0 in source:
            return self.shape(dims) if len(left) > 1 else self.shape(spare)
        if left and not isinstance(spare[left[0]], ir.Value) and _never_empty(dims, left[0]):
            spare[left[0]] = -1
        return self.const(spare) if all(isinstance(d, int) for d in spare) else self.shape(spare)

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Return ``x`` without the given axes of size 1."""
        result: Value = self.Squeeze(x, self.const(list(axes))) if axes else x
        return result

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Return ``x`` with axes of size 1 at these positions of the result."""
        result: Value = self.Unsqueeze(x, self.const(list(axes))) if axes else x
        return result

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Return ``x`` with axes permuted; no node if nothing moves."""
        if list(perm) == list(range(len(perm))):
            return x
        result: Value = self.Transpose(x, perm=list(perm))
        return result

    def slice(
        self, x: Value, axis: int, start: Dim | Value, end: Dim | Value, step: int = 1
    ) -> Value:
        """Return ``x[start:end:step]`` along one axis."""
        bounds = [self.shape([start]), self.shape([end]), self.const([axis]), self.const([step])]
        result: Value = self.Slice(x, *bounds)
        dims = x.meta.get("dims")
        if dims is not None and isinstance(start, int) and isinstance(end, int):
            size = dims[axis]
            if not isinstance(size, int):
                return result
            length = len(range(size)[start:end:step])
            set_dims(result, (*dims[:axis], length, *dims[axis + 1 :]))
        return result

    def expand(self, x: Value, dims: Sequence[Dim | Value]) -> Value:
        """Return ``x`` broadcast to these dims; no node if it has them."""
        if x.meta.get("dims") is not None and x.meta["dims"] == tuple(dims):
            return x
        known = [d for d in dims if isinstance(d, int)]
        if 0 in known and len(known) == len(dims):
            # onnxruntime's optimizer removes an Expand to an empty shape as a no-op
            return self.const(torch.zeros(known, dtype=real_part(dtype_of(x))))
        result: Value = self.Expand(x, self.shape(dims))
        if not any(isinstance(d, ir.Value) for d in dims):
            set_dims(result, [as_dim(d) for d in dims])
        return result

    # ------------------------------------------------------------------ calls
    def composite(self, name: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        """Call a standard composite; its function body is built after the whole program.

        Returns:
            The first output.
        """
        return self.composite_outputs(name, inputs, **attributes)[0]

    def composite_outputs(
        self, name: str, inputs: Sequence[Value | None], **attributes: Any
    ) -> list[Value]:
        """Call a standard composite and return all its outputs."""
        if self.composites is None:
            raise LoweringError(f"composite {name} called inside a composite body")
        return self.composites.call(self, name, inputs, attributes)

    def call(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
        outputs: int = 1,
    ) -> list[Value]:
        """Append a node of a custom domain; the caller must set the dtypes of the outputs."""
        node = self.scope.append(op_type, _trim(inputs), attributes, outputs, domain)
        return list(node.outputs)

    # ------------------------------------------------------------------ nodes
    def node(
        self,
        op_type: str,
        operands: Sequence[Operand],
        attributes: Mapping[str, Any],
        *,
        outputs: int = 1,
    ) -> Any:
        """Append a node of the standard domain; return its output, or a tuple of outputs."""
        try:
            schema = op_schema(op_type, self.opset)
        except KeyError as error:
            raise LoweringError(
                str(error.args[0]), self.scope.where, "choose a higher opset_version"
            ) from None
        operands, attributes = axes_from_the_front(op_type, operands, attributes)
        bound = _bind_types(schema, operands)
        narrowed: dict[str, ir.DataType] = {}
        for variable, dtype in list(bound.items()):
            wide = compute_dtype(op_type, self.opset, variable, dtype)
            if wide is not None and op_type not in _UNTYPED:
                narrowed[variable], bound[variable] = dtype, wide
        inputs = [
            self._operand(x, schema.input_type(i), schema, bound, narrowed)
            for i, x in enumerate(operands)
        ]
        plain = {k: v for k, v in attributes.items() if v is not None}
        node = self.scope.append(op_type, _trim(inputs), plain, outputs)
        results = []
        for i, value in enumerate(node.outputs):
            variable = schema.outputs[min(i, len(schema.outputs) - 1)]
            self._set_output(value, op_type, variable, schema, bound, attributes)
            if i == 0 and (dims := infer_dims(op_type, inputs, plain)) is not None:
                set_dims(value, dims)
            results.append(self._narrow(value, narrowed.get(variable)))
        return results[0] if outputs == 1 else tuple(results)

    def _narrow(self, value: Value, dtype: ir.DataType | None) -> Value:
        """Cast a result that was computed in a wider dtype back to its own dtype."""
        return value if dtype is None else self.cast(value, dtype)

    def _operand(
        self,
        x: Operand,
        variable: str | None,
        schema: OpSchema,
        bound: Mapping[str, ir.DataType],
        narrowed: Mapping[str, ir.DataType],
    ) -> Value | None:
        """Return the value of one operand, in the dtype in which the op is computed."""
        if x is None:
            return None
        wanted = None
        if variable is not None:
            wanted = bound.get(variable) or schema.concrete(variable)
        if isinstance(x, ir.Value):
            narrow = variable is not None and variable in narrowed
            return self.cast(x, bound[variable or ""]) if narrow else x
        if isinstance(x, AttributeRef):
            value = self.scope.attribute(self, x)
        elif isinstance(x, sympy.Basic):
            value = self.dim(x)
        elif isinstance(x, list | tuple) and any(isinstance(e, sympy.Basic | ir.Value) for e in x):
            value = self.shape(x)
        else:
            return self.const(x, wanted)
        return self.cast(value, wanted) if wanted is not None else value

    def _set_output(
        self,
        value: Value,
        op_type: str,
        variable: str,
        schema: OpSchema,
        bound: Mapping[str, ir.DataType],
        attributes: Mapping[str, Any],
    ) -> None:
        """Set the dtype of an output to that of its type variable."""
        if op_type in ("Cast", "EyeLike") and (to := attributes.get("to", attributes.get("dtype"))):
            dtype: ir.DataType | None = ir.DataType(to)
        elif op_type == "ConstantOfShape" and "value" in attributes:
            dtype = attributes["value"].dtype
        else:
            dtype = bound.get(variable) or schema.concrete(variable)
        if dtype is not None:
            value.dtype = dtype


def _bind_types(schema: OpSchema, operands: Sequence[Operand]) -> dict[str, ir.DataType]:
    """Return the dtype of each type variable: from the values, or else from the numbers."""
    bound: dict[str, ir.DataType] = {}
    for i, x in enumerate(operands):
        variable = schema.input_type(i)
        if variable is not None and isinstance(x, ir.Value) and x.dtype is not None:
            bound.setdefault(variable, x.dtype)
    for i, x in enumerate(operands):
        variable = schema.input_type(i)
        if variable is None or variable in bound or schema.concrete(variable) is not None:
            continue
        if isinstance(x, bool | int | float | sympy.Basic):
            bound[variable] = ir_dtype(scalar_dtype(x))
    return bound


def _as_ir(dtype: torch.dtype | ir.DataType) -> ir.DataType:
    return dtype if isinstance(dtype, ir.DataType) else ir_dtype(real_part(dtype))


def _trim(inputs: Sequence[Value | None]) -> list[Value | None]:
    """Drop absent inputs at the end."""
    trimmed = list(inputs)
    while trimmed and trimmed[-1] is None:
        trimmed.pop()
    return trimmed


def _never_empty(dims: Sequence[Any], unknown: int) -> bool:
    """Whether -1 can be inferred: no other dim is zero or could be zero."""
    return all(isinstance(d, int) and d > 0 for i, d in enumerate(dims) if i != unknown)
