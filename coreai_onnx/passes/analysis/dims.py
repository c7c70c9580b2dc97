"""Static analysis of shape values: each element of an integer tensor is an int, a name or None.

``Shape`` of ``x[batch, 128, 64]`` is ``(batch, 128, 64)``; ``Gather``, ``Concat`` and arithmetic
carry that on, so that ``Gather(Shape(x), 1)`` is known to be 128 although ``Shape(x)`` is not.
"""
# ruff: noqa: ARG001 - every rule has the signature of a rule

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    constant_of,
    input_of,
    ints_of,
    is_standard,
    shape_of,
)
from coreai_onnx.passes.engine.tensor_table import TensorTable

LONGEST = 64
"""Longer integer tensors are data, not shapes."""


@dataclass(frozen=True)
class Dims:
    """The elements of an integer tensor of rank 0 or 1.

    Attributes:
        items: The elements in order.
        is_scalar: Whether the tensor has rank 0.
    """

    items: tuple[Dim, ...]
    is_scalar: bool = False

    def is_known(self) -> bool:
        """Whether every element is an int."""
        return all(isinstance(item, int) for item in self.items)

    def array(self, dtype: np.dtype) -> np.ndarray:
        """Return the elements, all of them known, as an array."""
        return np.array(self.items[0] if self.is_scalar else self.items, dtype=dtype)


class DimsAnalysis:
    """Finds the shape values of one graph and caches them."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._known: TensorTable[Dims | None] = TensorTable()

    def of(self, tensor: gs.Tensor) -> Dims | None:
        """Return the known elements of a tensor; None if nothing is known.

        Producers are visited without recursion: the chain of a cache length may be long.
        """
        stack = [tensor]
        while stack:
            current = stack[-1]
            if current in self._known:
                stack.pop()
                continue
            reads = _shape_inputs(current)
            waiting = [t for t in reads if t not in self._known]
            if waiting:
                stack.extend(waiting)
                continue
            self._known[current] = self._evaluate(current)
            stack.pop()
        return self._known[tensor]

    def _evaluate(self, tensor: gs.Tensor) -> Dims | None:
        if isinstance(tensor, gs.Constant):
            return _of_constant(tensor)
        if len(tensor.inputs) != 1:
            return None
        node = tensor.inputs[0]
        rule = _RULES.get(node.op)
        if rule is None or not is_standard(node, node.op):
            return None
        known = [self._known.get(t) for t in node.inputs]
        dims = rule(node, known)
        return dims if dims is None or len(dims.items) <= LONGEST else None


def _shape_inputs(tensor: gs.Tensor) -> list[gs.Tensor]:
    """Return the tensors whose elements determine those of this one."""
    if isinstance(tensor, gs.Constant) or len(tensor.inputs) != 1:
        return []
    node = tensor.inputs[0]
    if node.op not in _RULES or node.op in ("Shape", "Size") or not is_standard(node, node.op):
        return []
    return [t for t in node.inputs if not t.is_empty()]


def _of_constant(constant: gs.Constant) -> Dims | None:
    if len(constant.shape) > 1 or np.dtype(constant.dtype).kind not in "iu":
        return None
    values = constant_of(constant, at_most=LONGEST)
    if values is None or values.dtype.name not in ("int32", "int64"):
        return None
    return Dims(tuple(int(v) for v in values.ravel()), is_scalar=values.ndim == 0)


Rule = Callable[[gs.Node, list[Dims | None]], Dims | None]


def _shape(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    shape = shape_of(node.inputs[0])
    start, end = attribute_of(node, "start", 0), attribute_of(node, "end", None)
    if shape is None or not isinstance(start, int) or not isinstance(end, int | None):
        return None
    return Dims(shape[start:end])


def _size(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    shape = shape_of(node.inputs[0])
    if shape is None:
        return None
    size = 1
    for dim in shape:
        if not isinstance(dim, int):
            return None
        size *= dim
    return Dims((size,), is_scalar=True)


def _same(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    return known[0]


def _cast(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    """Casts between int32 and int64 keep values that fit into int32."""
    if known[0] is None or attribute_of(node, "to", None) not in (6, 7):
        return None
    fits = all(not isinstance(i, int) or -(2**31) <= i < 2**31 for i in known[0].items)
    return known[0] if fits else None


def _gather(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    data, indices = known[0], ints_of(node.inputs[1])
    if (
        data is None
        or indices is None
        or data.is_scalar
        or attribute_of(node, "axis", 0) not in (0, -1)
    ):
        return None
    size = len(data.items)
    if len(node.inputs[1].shape) > 1 or not all(-size <= i < size for i in indices):
        return None
    return Dims(tuple(data.items[i] for i in indices), is_scalar=len(node.inputs[1].shape) == 0)


def _slice(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    data = known[0]
    bounds = [ints_of(t) if (t := input_of(node, i)) is not None else None for i in (1, 2, 3, 4)]
    starts, ends, axes, steps = bounds
    if data is None or data.is_scalar or starts is None or ends is None or len(starts) != 1:
        return None
    if any(input_of(node, i) is not None and bounds[i - 1] is None for i in (3, 4)):
        return None
    if (axes or [0])[0] not in (0, -1) or (steps or [1])[0] != 1:
        return None
    return Dims(data.items[starts[0] : ends[0]])


def _concat(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    items: list[Dim] = []
    for tensor, part in zip(node.inputs, known, strict=True):
        if part is not None:
            if part.is_scalar:
                return None
            items.extend(part.items)
            continue
        shape = shape_of(tensor)
        if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
            return None
        if shape[0] > LONGEST:
            return None
        items.extend([None] * shape[0])
    return Dims(tuple(items))


def _unsqueeze(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    axes = ints_of(node.inputs[1]) if len(node.inputs) > 1 else attribute_of(node, "axes", None)
    if known[0] is None or not known[0].is_scalar or axes not in ([0], [-1]):
        return None
    return Dims(known[0].items)


def _squeeze(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    if known[0] is None or known[0].is_scalar or len(known[0].items) != 1:
        return None
    return Dims(known[0].items, is_scalar=True)


def _reshape(node: gs.Node, known: list[Dims | None]) -> Dims | None:
    """Reshape to a vector of the same length, to one element, or to a scalar."""
    data, target = known[0], ints_of(node.inputs[1])
    if data is None or target is None:
        return None
    if target == [] and len(data.items) == 1:
        return Dims(data.items, is_scalar=True)
    return Dims(data.items) if target in ([-1], [len(data.items)]) and data.items else None


def _arithmetic(compute: Callable[[int, int], int | None]) -> Rule:
    neutral = {"Add": (0, 0), "Sub": (None, 0), "Mul": (1, 1), "Div": (None, 1)}

    def rule(node: gs.Node, known: list[Dims | None]) -> Dims | None:
        left, right = known
        if left is None or right is None:
            return None
        a, b = left.items, right.items
        if len(a) != len(b):
            if 1 not in (len(a), len(b)):
                return None
            a, b = (a * len(b), b) if len(a) == 1 else (a, b * len(a))
        first, second = neutral.get(node.op, (None, None))

        def item(x: Dim, y: Dim) -> Dim:
            if isinstance(x, int) and isinstance(y, int):
                return compute(x, y)
            if y is not None and x == first and isinstance(x, int):
                return y
            return x if y == second and isinstance(y, int) else None

        return Dims(
            tuple(item(x, y) for x, y in zip(a, b, strict=True)),
            is_scalar=left.is_scalar and right.is_scalar,
        )

    return rule


def _in_range(value: int) -> int | None:
    return value if -(2**31) <= value < 2**31 else None


def _divide(x: int, y: int) -> int | None:
    """ONNX integers divide toward zero; a division by zero stays in the graph."""
    return None if y == 0 else _in_range(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1))


_RULES: dict[str, Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Add": _arithmetic(lambda x, y: _in_range(x + y)),
    "Sub": _arithmetic(lambda x, y: _in_range(x - y)),
    "Mul": _arithmetic(lambda x, y: _in_range(x * y)),
    "Div": _arithmetic(_divide),
}
