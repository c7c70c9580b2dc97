"""Static analysis of positions and of masks that are computed from positions.

The analysis follows differences, slices and concatenations of positions, so that a causal mask is
recognized however the model computes it.
"""
# ruff: noqa: ARG001 - every rule has the signature of a rule

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coreai_onnx.passes.analysis.affine import (
    ONE,
    AffineDims,
    AffineExpr,
    AffineMask,
    AffineTensor,
    AffineValue,
    affine_expr,
    affine_tensor,
    broadcast,
    broadcast_dims,
    transform,
)
from coreai_onnx.passes.analysis.dataflow import ForwardAnalysis
from coreai_onnx.passes.analysis.shape_values import sliced_shape
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import (
    attribute_of,
    axes_of,
    constant_of,
    ints_of,
    maker,
    shape_of,
)

_FAR = 2**31 - 1
"""A slice with this end or a larger one extends to the end of the axis."""


def _dims(tensor: gs.Tensor, otherwise: AffineDims) -> AffineDims:
    """Return the declared dims of a tensor, or else the inferred ones."""
    shape = shape_of(tensor)
    if shape is None or len(shape) != len(otherwise):
        return otherwise
    return tuple(
        # An inferred dim is an expression of other dims, which comparisons need; a declared one may
        # be a new name for it.
        affine_expr(dim) if other is None else other
        for dim, other in zip(shape, otherwise, strict=True)
    )


def _shape(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    """The size of one axis."""
    dims = sliced_shape(node) or ()
    size = affine_expr(dims[0]) if len(dims) == 1 else None
    return None if size is None else AffineTensor(size, (0,), (ONE,))


def _range(node: gs.Node, facts: list[AffineValue | None]) -> AffineValue | None:
    start, limit, delta = facts
    step = None if delta is None else delta.splat
    if step is None or not isinstance(start, AffineTensor):
        return None
    length = None
    # With another step, the length is a rounded quotient, which is not affine.
    if step == 1 and isinstance(limit, AffineTensor):
        length = limit.start - start.start
    return affine_tensor(start.start, (step,), _dims(node.outputs[0], (length,)))


def _cast(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    """Casts between int32 and int64, and of bool; values that do not fit are not positions."""
    (x,) = facts
    if attribute_of(node, "to", None) in (6, 7):
        return x if isinstance(x, AffineTensor) else None
    truth = isinstance(x, AffineMask) or x.splat in (0, 1)
    return x if attribute_of(node, "to", None) == 9 and truth else None


def _unsqueeze(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    axes = axes_of(node)
    if axes is None:
        return None

    def change(x: AffineTensor) -> AffineTensor:
        rank = len(x.dims) + len(axes)
        steps, dims = list(x.steps), list(x.dims)
        for axis in sorted(axis % rank for axis in axes):
            steps.insert(axis, 0)
            dims.insert(axis, ONE)
        return AffineTensor(x.start, tuple(steps), tuple(dims))

    return transform(facts[0], change)


def _squeeze(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    axes = axes_of(node)

    def change(x: AffineTensor) -> AffineTensor:
        rank = len(x.dims)
        gone = {i for i in range(rank) if x.dims[i] == ONE}
        if axes is not None:
            gone = {axis % rank for axis in axes}
        return x.permuted([i for i in range(rank) if i not in gone])

    # Without axes, Squeeze removes all dims of 1, and a named dim may be 1 at run time.
    sizes_known = all(dim is not None and dim.int_value is not None for dim in facts[0].dims)
    return transform(facts[0], change) if axes is not None or sizes_known else None


def _result_dims(node: gs.Node) -> AffineDims | None:
    """Return the declared dims of the result of a node; None if the rank is unknown."""
    shape = shape_of(node.outputs[0])
    return None if shape is None else tuple(affine_expr(dim) for dim in shape)


def _expand(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    dims = _result_dims(node)
    return None if dims is None else transform(facts[0], lambda x: broadcast(x, dims))


def _transpose(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    perm = attribute_of(node, "perm", None)
    if not isinstance(perm, list | tuple):
        return None
    return transform(facts[0], lambda x: x.permuted(perm))


def _of_splat(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    """Elements of a tensor whose elements are all equal."""
    value, dims = facts[0].splat, _result_dims(node)
    return None if value is None or dims is None else AffineTensor.filled(value, dims)


def _pad(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    """Ones, with zeros after them along the last axis: true up to a length."""
    size, pads = facts[0].dims[-1], node.inputs[1]
    concat, rank = maker(pads), len(facts[0].dims)
    parts = [pads] if concat is None else list(concat.inputs)
    before = ints_of(parts[0])
    # Only the end of the last axis is padded: the other amounts are constants of 0.
    if before is None or len(before) < 2 * rank - 1 or any(before[: 2 * rank - 1]):
        return None
    dims = _result_dims(node)
    is_zero = len(node.inputs) < 3 or node.inputs[2].is_empty()
    if facts[0].splat != 1 or size is None or dims is None or not is_zero:
        return None
    if attribute_of(node, "mode", "constant") != "constant":
        return None
    steps = (*(0 for _ in dims[1:]), 1)
    return AffineMask((affine_tensor(AffineExpr(1) - size, steps, dims),), dims)


def _select(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    """One element along an axis."""
    index, axis = ints_of(node.inputs[1]), attribute_of(node, "axis", 0)
    # An index from the end needs the size of the axis, which may have a name.
    if index is None or len(index) != 1 or index[0] < 0 or not isinstance(facts[0], AffineTensor):
        return None
    x, keeps = facts[0], len(node.inputs[1].shape)
    if keeps > 1:
        return None
    axis %= len(x.dims)
    start = x.start + x.steps[axis] * index[0]
    steps, dims = list(x.steps), list(x.dims)
    steps[axis : axis + 1], dims[axis : axis + 1] = [0] * keeps, [ONE] * keeps
    return AffineTensor(start, tuple(steps), tuple(dims))


def _slice(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    x = facts[0]
    bounds = [ints_of(tensor) for tensor in list(node.inputs)[1:5]]
    if not isinstance(x, AffineTensor) or any(bound is None or len(bound) != 1 for bound in bounds):
        return _of_splat(node, facts)
    # ONNX's defaults for absent axes and steps are the first axis and 1.
    (start, end, axis, step) = (*(b[0] for b in bounds if b), *[0, 1][len(bounds) - 2 :])
    axis %= len(x.dims)
    size = x.dims[axis]
    if start < 0 or step != 1:
        return None
    length = None
    if size is not None and (end < 0 or end >= _FAR):
        length = size + min(0, end) - start
    elif size is not None and size.int_value is not None:
        length = AffineExpr(min(end, size.int_value) - start)
    dims = list(x.dims)
    dims[axis] = length
    origin = x.start + x.steps[axis] * start
    return affine_tensor(origin, x.steps, _dims(node.outputs[0], tuple(dims)))


def _concat(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    """Parts of which each continues the one before."""
    parts = [part for part in facts if isinstance(part, AffineTensor)]
    if len(parts) < len(node.inputs) or not parts[0].dims:
        return None
    axis = attribute_of(node, "axis", 0) % len(parts[0].dims)
    sizes = [part.dims[axis] for part in parts]
    # A part of size 1 has the step 0, which says nothing about the whole.
    steps = next((part.steps for part in parts if part.dims[axis] != ONE), None)
    if steps is None or any(size is None for size in sizes):
        return None
    offset = AffineExpr()
    for part, size in zip(parts, sizes, strict=True):
        expected = [0 if i == axis and size == ONE else step for i, step in enumerate(steps)]
        if part.start != parts[0].start + offset * steps[axis] or part.steps != tuple(expected):
            return None
        offset += size or 0
    dims = list(parts[0].dims)
    dims[axis] = offset
    return AffineTensor(parts[0].start, steps, tuple(dims))


def _sums(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    """CumSum of a tensor whose elements are all equal."""
    axis = ints_of(node.inputs[1])
    if not isinstance(facts[0], AffineTensor) or axis is None or facts[0].splat is None:
        return None
    x, value = facts[0], facts[0].splat
    if any(attribute_of(node, name, 0) != 0 for name in ("exclusive", "reverse")):
        # Zeros have the same sums in either direction.
        return x if value == 0 else None
    steps = [0] * len(x.dims)
    # The sum includes its own element, so it begins with the value and not with 0.
    steps[axis[0]] = value or 0
    return affine_tensor(x.start, steps, x.dims)


def _combined(node: gs.Node, facts: list[AffineValue], sign: int) -> AffineTensor | None:
    """The sum, or the difference, of two affine tensors."""
    a, b = facts
    if not isinstance(a, AffineTensor) or not isinstance(b, AffineTensor):
        return None
    dims = _dims(node.outputs[0], broadcast_dims(a.dims, b.dims))
    first, second = broadcast(a, dims), broadcast(b, dims)
    if first is None or second is None:
        return None
    steps = [x + sign * y for x, y in zip(first.steps, second.steps, strict=True)]
    return AffineTensor(first.start + second.start * sign, tuple(steps), dims)


def _negated(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    return facts[0].scaled(-1) if isinstance(facts[0], AffineTensor) else None


def _product(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    for x, other in (facts, facts[::-1]):
        factor, is_smaller = other.splat, len(other.dims) <= len(x.dims)
        if factor is None or not isinstance(x, AffineTensor) or not is_smaller:
            continue
        if all(dim == ONE for dim in other.dims):
            return x.scaled(factor)
    return None


def _where_not_above(constraint: AffineTensor) -> AffineValue:
    """Return the mask of the elements that are not above zero."""
    most, most_negated = constraint.upper_bound, constraint.scaled(-1).upper_bound
    if most is not None and most <= 0:
        return AffineTensor.filled(1, constraint.dims)
    if most_negated is not None and most_negated < 0:
        return AffineTensor.filled(0, constraint.dims)
    return AffineMask((constraint,), constraint.dims)


def _compared(*, sign: int, strict: bool) -> Rule:
    def rule(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
        difference = _combined(node, facts, -1)
        if difference is None:
            return None
        difference = difference.scaled(sign)
        # Of integers, a < b says that a - b + 1 is not above zero.
        return _where_not_above(replace(difference, start=difference.start + int(strict)))

    return rule


def _equal(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    difference = _combined(node, facts, -1)
    # A difference that grows is zero on a diagonal, which no constraint can express.
    if difference is None or difference.splat is None:
        return None
    return AffineTensor.filled(int(difference.splat == 0), difference.dims)


def _not(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    value = facts[0].splat
    return None if value is None else AffineTensor.filled(1 - value, facts[0].dims)


def _and(node: gs.Node, facts: list[AffineValue]) -> AffineValue | None:
    dims = _dims(node.outputs[0], broadcast_dims(facts[0].dims, facts[1].dims))
    constraints: dict[AffineTensor, None] = {}
    for one in facts:
        if isinstance(one, AffineTensor):
            # A mask that is false somewhere cannot be written as a constraint of this form.
            if one.splat != 1:
                return None
            continue
        for constraint in one.constraints:
            wide = broadcast(constraint, dims)
            if wide is None:
                return None
            constraints[wide] = None
    return AffineMask(tuple(constraints), dims) if constraints else AffineTensor.filled(1, dims)


Rule = Callable[[gs.Node, list[Any]], AffineValue | None]

RULES: dict[str, tuple[Rule, int | None]] = {
    "Shape": (_shape, 0),
    "Range": (_range, 3),
    "Identity": (lambda _, facts: facts[0], 1),
    "Cast": (_cast, 1),
    "Unsqueeze": (_unsqueeze, 1),
    "Squeeze": (_squeeze, 1),
    "Expand": (_expand, 1),
    "Transpose": (_transpose, 1),
    "Gather": (_select, 1),
    "GatherElements": (_of_splat, 1),
    "GatherND": (_of_splat, 1),
    "Pad": (_pad, 1),
    "Slice": (_slice, 1),
    "Concat": (_concat, None),
    "CumSum": (_sums, 1),
    "Add": (lambda node, facts: _combined(node, facts, 1), 2),
    "Sub": (lambda node, facts: _combined(node, facts, -1), 2),
    "Mul": (_product, 2),
    "Neg": (_negated, 1),
    "LessOrEqual": (_compared(sign=1, strict=False), 2),
    "Less": (_compared(sign=1, strict=True), 2),
    "GreaterOrEqual": (_compared(sign=-1, strict=False), 2),
    "Greater": (_compared(sign=-1, strict=True), 2),
    "Equal": (_equal, 2),
    "Not": (_not, 1),
    "And": (_and, 2),
}
"""The rule of each op, and the number of inputs that it reads; None for all."""
PARTIAL = ("Range",)
"""Ops whose rules also accept unknown inputs, since the dims of their results are declared."""


_LONGEST = 4096
"""Constants with more elements are not read."""
_DTYPES = ("bool", "int32", "int64")


class AffineAnalysis(ForwardAnalysis[AffineValue]):
    """Finds the tensors of integers and booleans that are affine in their indices.

    Args:
        given: What is known of inputs.
        open_ranges: Whether a ``Range`` of unknown limit is followed, with its declared length.
    """

    def __init__(
        self, given: Mapping[gs.Tensor, AffineValue] | None = None, *, open_ranges: bool = False
    ) -> None:
        super().__init__()
        self._known.update(given or {})
        self._partial = PARTIAL if open_ranges else ()

    def operands(self, node: gs.Node) -> Sequence[gs.Tensor] | None:
        """Return the inputs that the rule of the op reads."""
        if node.op not in RULES:
            return None
        return list(node.inputs)[: RULES[node.op][1]]

    def transfer(self, node: gs.Node, facts: list[AffineValue | None]) -> AffineValue | None:
        """Apply the rule of the op, which for most ops needs all operands."""
        # An unknown limit leaves the length of a Range unknown, but not its start and step.
        if None in facts and node.op not in self._partial:
            return None
        return RULES[node.op][0](node, facts)

    def of_constant(self, constant: gs.Constant) -> AffineTensor | None:
        """Fit start and steps to the elements of a constant."""
        if np.dtype(constant.dtype).name not in _DTYPES:
            return None
        values = constant_of(constant, at_most=_LONGEST)
        if values is None or not values.size:
            return None
        # Booleans become 0 and 1, and differences of int32 do not wrap around.
        values = values.astype(np.int64)
        start, steps, fitted = int(values.flat[0]), [], np.zeros(values.shape, np.int64)
        for axis, size in enumerate(values.shape):
            second = tuple(int(other == axis) for other in range(values.ndim))
            steps.append(int(values[second]) - start if size > 1 else 0)
            fitted += steps[-1] * np.indices(values.shape)[axis]
        if not np.array_equal(values, fitted + start):
            return None
        dims = tuple(AffineExpr(size) for size in values.shape)
        return AffineTensor(AffineExpr(start), tuple(steps), dims)
