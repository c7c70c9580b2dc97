"""Builds ONNX nodes: converts operands to values, infers dtypes, and casts to supported ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
import onnx.defs
import onnx_ir as ir
import sympy
import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.nodes.attributes import onnx_attributes
from coreai_onnx.lower.nodes.inference import infer_dims
from coreai_onnx.lower.nodes.scope import AttributeRef, Scope
from coreai_onnx.lower.nodes.values import (
    Number,
    Value,
    ir_dtype,
    real_part,
    scalar_dtype,
    set_dims,
    torch_dtype,
)
from coreai_onnx.model.standard.op_schemas import OpTypes, first_version, schema_of, types_of
from coreai_onnx.targets.legalize import axes_from_the_front, compute_dtype
from coreai_onnx.targets.releases import Release

Operand: TypeAlias = (
    Value | Number | AttributeRef | sympy.Basic | Sequence[Any] | np.ndarray | torch.Tensor | None
)
# Their output dtype is an attribute, so the dtype of an operand must not be widened for it.
_UNTYPED = {"Constant", "ConstantOfShape", "EyeLike", "RandomNormal", "RandomUniform", "Cast"}


class NodeMaker(Protocol):
    """Appends a node of one op type."""

    @overload
    def __call__(
        self, *operands: Operand, _outputs: int, **attributes: Any
    ) -> tuple[Value, ...]: ...

    @overload
    def __call__(self, *operands: Operand, **attributes: Any) -> Value: ...


_NO_OPERATOR = 'op.node("Name", x, domain="my.domain") calls an operator of another domain'


class NodeBuilder:
    """Builds ONNX nodes: ``op.Add(x, 1)`` appends a node and returns its output value.

    Python numbers, lists and arrays among the operands become constants with the dtype of the other
    operands. Operands whose dtype has no kernel in onnxruntime are cast to one that has, and the
    result is cast back.

    Args:
        scope: The graph under construction.
        opset: Version of the ``ai.onnx`` operator set.
        oldest: The oldest onnxruntime that must run the model; None for the newest.
    """

    def __init__(self, scope: Scope, opset: int, oldest: Release | None = None) -> None:
        """Start at the end of the scope's graph."""
        self.scope, self.opset, self.oldest = scope, opset, oldest

    def __getattr__(self, op_type: str) -> NodeMaker:
        """Return a function that appends a node of this op type.

        With ``_outputs``, the function returns a tuple of that many values.
        """
        # Keeps a misspelled method an AttributeError; copy and pickle look up such names as well.
        if not op_type[0].isupper():
            raise AttributeError(op_type)

        def make(*operands: Operand, _outputs: int | None = None, **attributes: Any) -> Any:
            outputs = self.node_outputs(op_type, operands, attributes, _outputs or 1)
            return outputs[0] if _outputs is None else outputs

        return make

    # ------------------------------------------------------------------ constants and casts
    def const(
        self, value: Any, dtype: torch.dtype | ir.DataType | None = None, name: str | None = None
    ) -> Value:
        """Return a constant; ``dtype`` defaults to torch's dtype for the Python value."""
        if isinstance(value, torch.Tensor):
            # onnx_ir reads the memory of the tensor, in the order in which it lies there.
            array = ir.tensor(value.detach().contiguous().cpu())
            if dtype is not None and array.dtype != _as_ir(dtype):
                array = ir.tensor(value.detach().to(torch_dtype(_as_ir(dtype))).contiguous())
            return self.scope.constant(array, name)
        if isinstance(value, np.ndarray) and dtype is None:
            return self.scope.constant(ir.tensor(value), name)
        as_torch = torch_dtype(_as_ir(dtype)) if dtype is not None else None
        tensor = torch.tensor(value, dtype=as_torch)
        # torch makes float32 of an empty list; in a lowering it is a list of axes or sizes.
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
        return self.node("Cast", x, to=int(target))

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Return ``x`` without the given axes of size 1."""
        return self.Squeeze(x, self.const(list(axes))) if axes else x

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Return ``x`` with axes of size 1 at these positions of the result."""
        return self.Unsqueeze(x, self.const(list(axes))) if axes else x

    # ------------------------------------------------------------------ nodes
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

    @overload
    def node(
        self,
        op_type: str,
        *operands: Operand,
        domain: str = "",
        opset_version: int = 1,
        outputs: None = None,
        dtypes: Sequence[torch.dtype] | None = None,
        **attributes: Any,
    ) -> Value: ...

    @overload
    def node(
        self,
        op_type: str,
        *operands: Operand,
        domain: str = "",
        opset_version: int = 1,
        outputs: int,
        dtypes: Sequence[torch.dtype] | None = None,
        **attributes: Any,
    ) -> tuple[Value, ...]: ...

    def node(
        self,
        op_type: str,
        *operands: Operand,
        domain: str = "",
        opset_version: int = 1,
        outputs: int | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
        **attributes: Any,
    ) -> Any:
        """Append a node and return its output, or a tuple of as many as ``outputs`` says.

        A node of another domain than ONNX's is opaque: a custom op library implements it, and
        passes do not change it. Its operands are not cast, and constants among them have torch's
        dtype for the Python value.

        Args:
            op_type: The operator.
            *operands: Inputs; None for absent ones.
            domain: Domain of the operator; empty for ONNX's own.
            opset_version: Version of another domain. The model imports it.
            outputs: Number of outputs, which are returned as a tuple; None returns the only output.
            dtypes: Dtypes of the outputs of another domain's operator. By default they are those
                of the results of the torch operator that is lowered, from its fake kernel.
            **attributes: Bools, numbers, strings, lists of these, dtypes and tensors; an attribute
                that is None is omitted.

        Raises:
            LoweringError: If ONNX has no such operator, a dtype of an output is unknown, or an
                attribute has no ONNX form.
        """
        count = 1 if outputs is None else outputs
        if domain:
            plain = onnx_attributes(f"{domain}::{op_type}", attributes, self.scope.where)
            results = self._opaque(op_type, operands, plain, domain, opset_version, count, dtypes)
        else:
            results = self.node_outputs(op_type, operands, attributes, count)
        return results[0] if outputs is None else results

    def _opaque(
        self,
        op_type: str,
        operands: Sequence[Operand],
        attributes: Mapping[str, Any],
        domain: str,
        version: int,
        count: int,
        dtypes: Sequence[torch.dtype] | None,
    ) -> tuple[Value, ...]:
        """Append a node of another domain."""
        result_dtypes = self.scope.traced.dtypes if dtypes is None else tuple(dtypes)
        if len(result_dtypes) != count:
            raise LoweringError(
                f"{domain}::{op_type} has {count} output(s), but the dtypes of "
                f"{len(result_dtypes)} are known",
                self.scope.where,
                "pass outputs= and dtypes= for each output of the node",
            )
        # Nested graphs have no imports of their own in ONNX.
        imports = self.scope.root.graph.opset_imports
        if imports.setdefault(domain, version) != version:
            raise LoweringError(
                f"{domain}::{op_type} is of version {version}, another node of {domain} of "
                f"version {imports[domain]}",
                self.scope.where,
                "a model imports one version of a domain: pass the same opset_version everywhere",
            )
        inputs = [self._as_value(x, None) for x in operands]
        outputs = tuple(self.call(domain, op_type, inputs, attributes, count))
        for value, dtype in zip(outputs, result_dtypes, strict=True):
            value.dtype = ir_dtype(real_part(dtype))
        return outputs

    def schema(self, op_type: str) -> onnx.defs.OpSchema:
        """Return the schema of an operator of the standard domain at the opset.

        Raises:
            LoweringError: If the opset does not have it; the message names the first that does.
        """
        schema = schema_of(op_type, self.opset)
        if schema is None:
            first = first_version(op_type)
            if first is None:
                raise LoweringError(
                    f"ONNX has no operator {op_type}", self.scope.where, _NO_OPERATOR
                )
            raise LoweringError(
                f"ONNX has {op_type} in opset {first}, not in opset {self.opset}",
                self.scope.where,
                "choose a higher opset_version",
            )
        return schema

    def node_outputs(
        self,
        op_type: str,
        operands: Sequence[Operand],
        attributes: Mapping[str, Any],
        count: int,
    ) -> tuple[Value, ...]:
        """Append a node of the standard domain and return all its outputs."""
        # For its error, which names the opset that has the operator.
        self.schema(op_type)
        schema = types_of(op_type, self.opset)
        operands, attributes = axes_from_the_front(op_type, operands, attributes)
        bound = _bind_types(schema, operands)
        narrowed: dict[str, ir.DataType] = {}
        for variable, dtype in list(bound.items()):
            wide = compute_dtype(op_type, self.opset, variable, dtype, self.oldest)
            if wide is not None and op_type not in _UNTYPED:
                narrowed[variable], bound[variable] = dtype, wide
        inputs = [
            self._operand(x, schema.input_type(i), schema, bound, narrowed)
            for i, x in enumerate(operands)
        ]
        plain = {k: v for k, v in attributes.items() if v is not None}
        node = self.scope.append(op_type, _trim(inputs), plain, count)
        results = []
        for i, value in enumerate(node.outputs):
            # The last output may be variadic.
            variable = schema.outputs[min(i, len(schema.outputs) - 1)]
            self._set_output(value, op_type, variable, schema, bound, attributes)
            if i == 0 and (dims := infer_dims(op_type, inputs, plain)) is not None:
                set_dims(value, dims)
            # A result that was computed in a wider dtype has its own dtype again.
            results.append(self.cast(value, narrowed[variable]) if variable in narrowed else value)
        return tuple(results)

    def _operand(
        self,
        x: Operand,
        variable: str | None,
        schema: OpTypes,
        bound: Mapping[str, ir.DataType],
        narrowed: Mapping[str, ir.DataType],
    ) -> Value | None:
        """Return the value of one operand, in the dtype in which the op is computed."""
        if x is None:
            return None
        dtype = None
        if variable is not None:
            dtype = bound.get(variable) or schema.concrete(variable)
        if isinstance(x, ir.Value):
            narrow = variable is not None and variable in narrowed
            return self.cast(x, bound[variable or ""]) if narrow else x
        return self._as_value(x, dtype)

    def _as_value(self, x: Operand, dtype: ir.DataType | None) -> Value | None:
        """Return an operand as a value; a number or a size has the wanted dtype."""
        if x is None or isinstance(x, ir.Value):
            return x
        value = self.scope.attribute(x) if isinstance(x, AttributeRef) else self.symbolic(x)
        if value is None:
            return self.const(x, dtype)
        return self.cast(value, dtype) if dtype is not None else value

    def symbolic(self, _x: Operand) -> Value | None:
        """Return an operand with symbolic sizes as a value, or None for another operand.

        This builder has no sizes; ``OpBuilder`` computes them with its nodes.
        """
        return None

    def _set_output(
        self,
        value: Value,
        op_type: str,
        variable: str,
        schema: OpTypes,
        bound: Mapping[str, ir.DataType],
        attributes: Mapping[str, Any],
    ) -> None:
        if op_type in ("Cast", "EyeLike") and (to := attributes.get("to", attributes.get("dtype"))):
            dtype: ir.DataType | None = ir.DataType(to)
        elif op_type == "ConstantOfShape" and "value" in attributes:
            dtype = attributes["value"].dtype
        else:
            dtype = bound.get(variable) or schema.concrete(variable)
        if dtype is not None:
            value.dtype = dtype


def _bind_types(schema: OpTypes, operands: Sequence[Operand]) -> dict[str, ir.DataType]:
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
    # A complex tensor is stored as the dtype of its parts.
    return dtype if isinstance(dtype, ir.DataType) else ir_dtype(real_part(dtype))


def _trim(inputs: Sequence[Value | None]) -> list[Value | None]:
    """Drop absent inputs at the end."""
    trimmed = list(inputs)
    while trimmed and trimmed[-1] is None:
        trimmed.pop()
    return trimmed
