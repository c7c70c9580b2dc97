"""Static analysis of shape values: each element of an integer tensor is an int, a name or None.

``Shape`` of ``x[batch, 128, 64]`` is ``(batch, 128, 64)``; ``Gather``, ``Concat`` and arithmetic
propagate it, so that ``Gather(Shape(x), 1)`` is known to be 128 although ``Shape(x)`` is not.
"""
# ruff: noqa: ARG001 - every rule has the signature of a rule

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from coreai_onnx.passes.analysis.dataflow import ForwardAnalysis
from coreai_onnx.passes.analysis.evaluate import CannotEvaluateError, evaluate, rearrange
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    constant_of,
    shape_of,
    static_shape_of,
)

LONGEST = 64
"""Longer integer tensors are data, not shapes."""


@dataclass(frozen=True)
class ShapeValue:
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


class ShapeValueAnalysis(ForwardAnalysis[ShapeValue]):
    """Finds the shape values of a graph."""

    def operands(self, node: gs.Node) -> Sequence[gs.Tensor] | None:
        """Return the inputs whose elements determine those of the result."""
        if node.op not in _RULES:
            return None
        # These read the declared shape of their input, not its elements.
        return () if node.op in ("Shape", "Size") else list(node.inputs)

    def transfer(self, node: gs.Node, facts: list[ShapeValue | None]) -> ShapeValue | None:
        """Apply the rule of the op."""
        value = _RULES[node.op](node, facts)
        return value if value is None or len(value.items) <= LONGEST else None

    def of_constant(self, constant: gs.Constant) -> ShapeValue | None:
        """Return the elements of a small constant."""
        if len(constant.shape) > 1 or np.dtype(constant.dtype).name not in ("int32", "int64"):
            return None
        values = constant_of(constant, at_most=LONGEST)
        return None if values is None else _shape_value(values)


def _shape_value(array: np.ndarray) -> ShapeValue:
    return ShapeValue(tuple(array.ravel().tolist()), is_scalar=array.ndim == 0)


Rule = Callable[[gs.Node, list[ShapeValue | None]], ShapeValue | None]


def sliced_shape(node: gs.Node) -> tuple[Dim, ...] | None:
    """Return the dims that a ``Shape`` node returns; None if its input has no known rank."""
    shape = shape_of(node.inputs[0])
    start, end = attribute_of(node, "start", 0), attribute_of(node, "end", None)
    if shape is None or not isinstance(start, int) or not isinstance(end, int | None):
        return None
    return shape[start:end]


def _shape(node: gs.Node, facts: list[ShapeValue | None]) -> ShapeValue | None:
    dims = sliced_shape(node)
    return None if dims is None else ShapeValue(dims)


def _size(node: gs.Node, facts: list[ShapeValue | None]) -> ShapeValue | None:
    shape = static_shape_of(node.inputs[0])
    return None if shape is None else ShapeValue((math.prod(shape),), is_scalar=True)


def _cast(node: gs.Node, facts: list[ShapeValue | None]) -> ShapeValue | None:
    """Casts between int32 and int64 keep values that fit into int32."""
    if facts[0] is None or attribute_of(node, "to", None) not in (6, 7):
        return None
    fits = all(not isinstance(i, int) or _in_range(i) is not None for i in facts[0].items)
    return facts[0] if fits else None


def _moved(node: gs.Node, facts: list[ShapeValue | None]) -> ShapeValue | None:
    """Move the elements as the op moves those of any tensor."""
    if facts[0] is None:
        return None
    others = [None if t.is_empty() else constant_of(t, at_most=LONGEST) for t in node.inputs[1:]]
    if any(o is None and not t.is_empty() for o, t in zip(others, node.inputs[1:], strict=True)):
        return None
    try:
        # An array of objects holds names of dims beside numbers.
        moved = rearrange(node, [facts[0].array(np.dtype(object)), *others])
    except CannotEvaluateError:
        return None
    return _shape_value(moved) if moved.ndim < 2 else None


def _concat(node: gs.Node, facts: list[ShapeValue | None]) -> ShapeValue | None:
    """Concatenate vectors; one of known length may have unknown elements."""
    items: list[Dim] = []
    for tensor, part in zip(node.inputs, facts, strict=True):
        shape = static_shape_of(tensor) if part is None else (len(part.items),)
        if shape is None or len(shape) != 1 or shape[0] > LONGEST or (part and part.is_scalar):
            return None
        items.extend([None] * shape[0] if part is None else part.items)
    return ShapeValue(tuple(items))


_NEUTRAL = {"Add": (0, 0), "Sub": (None, 0), "Mul": (1, 1), "Div": (None, 1)}
"""The left and the right operand that leave the other one as it is."""


def _arithmetic(node: gs.Node, facts: list[ShapeValue | None]) -> ShapeValue | None:
    left, right = facts
    if left is None or right is None:
        return None
    a, b = left.items, right.items
    if len(a) != len(b):
        if 1 not in (len(a), len(b)):
            return None
        a, b = (a * len(b), b) if len(a) == 1 else (a, b * len(a))
    return ShapeValue(
        tuple(_combined(node, x, y) for x, y in zip(a, b, strict=True)),
        is_scalar=left.is_scalar and right.is_scalar,
    )


def _combined(node: gs.Node, x: Dim, y: Dim) -> Dim:
    if isinstance(x, int) and isinstance(y, int):
        try:
            (value,) = evaluate(node, [np.array(x), np.array(y)], limit=1)
        except CannotEvaluateError:  # a division by zero stays in the graph
            return None
        return _in_range(int(value))
    first, second = _NEUTRAL[node.op]
    if y is not None and x == first and isinstance(x, int):
        return y
    return x if y == second and isinstance(y, int) else None


def _in_range(value: int) -> int | None:
    # Casts to int32 are followed without a dtype, so all values must fit into it.
    return value if -(2**31) <= value < 2**31 else None


_RULES: dict[str, Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": lambda _, facts: facts[0],
    "Cast": _cast,
    "Concat": _concat,
    **dict.fromkeys(("Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape"), _moved),
    **dict.fromkeys(_NEUTRAL, _arithmetic),
}
