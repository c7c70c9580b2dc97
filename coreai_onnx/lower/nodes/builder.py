"""Builds ONNX nodes on tensors with symbolic sizes, and calls of composites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch

from coreai_onnx.composites import COMPOSITES, Composite
from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.nodes import shapes
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls, is_covered
from coreai_onnx.lower.nodes.node_builder import NodeBuilder, Operand
from coreai_onnx.lower.nodes.scope import Scope
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    complex_like,
    dtype_of,
    real_part,
    set_dims,
)
from coreai_onnx.targets.releases import Release


class OpBuilder(NodeBuilder):
    """Builds nodes for lowerings: operands and dims may be symbolic sizes of the program.

    Args:
        scope: The graph under construction.
        opset: Version of the ``ai.onnx`` operator set.
        composites: Receives the composite calls; None inside the body of a standard composite,
            where every op is decomposed.
        oldest: The oldest onnxruntime that must run the model; None for the newest.

    Attributes:
        only_first_used: Whether the program uses no result of the current op but the first. A
            composite returns no others.
    """

    def __init__(
        self,
        scope: Scope,
        opset: int,
        composites: CompositeCalls | None = None,
        oldest: Release | None = None,
    ) -> None:
        """Start at the end of the scope's graph."""
        super().__init__(scope, opset, oldest)
        self.composites = composites
        self.only_first_used = True

    def inside(self, scope: Scope) -> OpBuilder:
        """Return a builder of the same kind for a nested graph."""
        return OpBuilder(scope, self.opset, self.composites, self.oldest)

    # ------------------------------------------------------------------ dims
    def dim(self, x: Dim) -> Value:
        """Return a dim as a 0-d int64 value."""
        return shapes.scalar(self, x)

    def shape(self, dims: Sequence[Dim | Value]) -> Value:
        """Return a list of dims as a 1-D int64 value, a constant if all dims are known."""
        return shapes.vector(self, dims)

    def symbolic(self, x: Operand) -> Value | None:
        """Return a size, or a list with sizes or values, as an int64 value; None for the rest."""
        if isinstance(x, sympy.Basic):
            return self.dim(x)
        if isinstance(x, list | tuple) and any(isinstance(e, sympy.Basic | ir.Value) for e in x):
            return self.shape(x)
        return None

    def shape_of(self, x: Value) -> Value:
        """Return the shape of ``x`` as a 1-D int64 value, from its dims where they are known."""
        dims = x.meta.get("dims")
        return self.Shape(x) if dims is None else self.shape(dims)

    def reshape(self, x: Value, dims: Sequence[Dim | Value]) -> Value:
        """Return ``x`` with other dims; no node if they are the same."""
        if x.meta.get("dims") is not None and x.meta["dims"] == tuple(dims):
            return x
        target = self._reshape_target(x, dims)
        result = self.Reshape(x, target, allowzero=1) if 0 in dims else self.Reshape(x, target)
        if not any(isinstance(d, ir.Value) for d in dims):
            set_dims(result, [as_dim(d) for d in dims])
        return result

    def _reshape_target(self, x: Value, dims: Sequence[Dim | Value]) -> Value:
        """Return the target with little arithmetic: 0 copies a leading dim, one -1 is inferred."""
        unknown = [i for i, d in enumerate(dims) if not isinstance(d, int)]
        source = x.meta.get("dims")
        # With a size of 0, reshape sets allowzero, and a 0 no longer copies a dim.
        if source is None or not unknown or 0 in dims:
            return self.shape(dims)
        spare: list[Dim | Value] = list(dims)
        for i in unknown:
            if i < len(source) and not isinstance(dims[i], ir.Value) and source[i] == dims[i]:
                spare[i] = 0
        left = [i for i, d in enumerate(spare) if not isinstance(d, int)]
        # ONNX infers one -1 at most, and none for an empty tensor, which every size would fit.
        if len(left) > 1 or 0 in source:
            return self.shape(dims) if len(left) > 1 else self.shape(spare)
        if left and not isinstance(spare[left[0]], ir.Value) and _never_empty(dims, left[0]):
            spare[left[0]] = -1
        return self.const(spare) if all(isinstance(d, int) for d in spare) else self.shape(spare)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Return ``x`` with axes permuted; no node if nothing moves."""
        if list(perm) == list(range(len(perm))):
            return x
        return self.Transpose(x, perm=list(perm))

    def slice(
        self, x: Value, axis: int, start: Dim | Value, end: Dim | Value, step: int = 1
    ) -> Value:
        """Return ``x[start:end:step]`` along one axis."""
        bounds = [self.shape([start]), self.shape([end]), self.const([axis]), self.const([step])]
        result = self.Slice(x, *bounds)
        dims = x.meta.get("dims")
        if dims is not None and isinstance(start, int) and isinstance(end, int):
            size = dims[axis]
            # Bounds are clamped to the size, so the length for a symbolic size is not known.
            if not isinstance(size, int):
                return result
            length = len(range(size)[start:end:step])
            set_dims(result, (*dims[:axis], length, *dims[axis + 1 :]))
        return result

    def expand(self, x: Value, dims: Sequence[Dim | Value]) -> Value:
        """Return ``x`` broadcast to these dims; no node if it has them."""
        if x.meta.get("dims") is not None and x.meta["dims"] == tuple(dims):
            return x
        sizes = [d for d in dims if isinstance(d, int)]
        if 0 in sizes and len(sizes) == len(dims):
            # onnxruntime's optimizer removes an Expand to an empty shape as a no-op
            return self.const(torch.zeros(sizes, dtype=real_part(dtype_of(x))))
        result = self.Expand(x, self.shape(dims))
        if not any(isinstance(d, ir.Value) for d in dims):
            set_dims(result, [as_dim(d) for d in dims])
        return result

    def copy(self, x: Value) -> Value:
        """Return a copy of ``x``, which a node of this graph produces."""
        return complex_like(self.Identity(x), x)

    # ------------------------------------------------------------------ calls
    def composite(
        self, composite: str | Composite, inputs: Sequence[Value | None], **attributes: Any
    ) -> Value:
        """Call a composite; its function body is built after the whole program.

        Args:
            composite: The name of a standard composite, or the declaration of one of the user's.
            inputs: By position; None for absent ones.
            **attributes: Its attributes.

        Returns:
            The first output.
        """
        return self.composite_outputs(composite, inputs, **attributes)[0]

    def composite_outputs(
        self, composite: str | Composite, inputs: Sequence[Value | None], **attributes: Any
    ) -> list[Value]:
        """Call a composite and return all its outputs; see `composite`."""
        declared = COMPOSITES[composite] if isinstance(composite, str) else composite
        if self.composites is None:
            raise LoweringError(f"composite {declared.name} called inside a composite body")
        return self.composites.call(self, declared, inputs, attributes)

    def keeps(self, *values: Value | None) -> bool:
        """Whether an op on these values can be a call of its composite.

        It cannot be inside the body of a composite, if a result after the first one is used, or if
        a tensor is empty, complex, or not floating.
        """
        return self.composites is not None and self.only_first_used and is_covered(*values)


def _never_empty(dims: Sequence[Any], unknown: int) -> bool:
    """Whether -1 can be inferred: no other dim is zero or could be zero."""
    return all(isinstance(d, int) and d > 0 for i, d in enumerate(dims) if i != unknown)
