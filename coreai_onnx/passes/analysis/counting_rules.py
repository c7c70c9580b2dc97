"""Rules of the positions analysis: one per op."""
# ruff: noqa: ARG001 - every rule has the signature of a rule

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from coreai_onnx.passes.analysis.amounts import Amount, amount_of
from coreai_onnx.passes.analysis.counts import (
    ONE,
    Count,
    Dims,
    Known,
    Region,
    count_of,
    each,
    joint,
    spread,
)
from coreai_onnx.passes.engine.match import attribute_of, axes_of, ints_of, shape_of

_FAR = 2**31 - 1
"""A slice with this end or a larger one extends to the end of the axis."""


def _dims(tensor: gs.Tensor, otherwise: Dims) -> Dims:
    """Return the declared dims of a tensor, or else the inferred ones."""
    shape = shape_of(tensor)
    if shape is None or len(shape) != len(otherwise):
        return otherwise
    return tuple(
        amount_of(dim) if other is None else other
        for dim, other in zip(shape, otherwise, strict=True)
    )


def _shape(node: gs.Node, known: list[Known]) -> Known | None:
    shape = shape_of(node.inputs[0])
    start, end = attribute_of(node, "start", 0), attribute_of(node, "end", None)
    if shape is None or not isinstance(start, int) or not isinstance(end, int | None):
        return None
    dims = shape[start:end]
    size = amount_of(dims[0]) if len(dims) == 1 else None
    return None if size is None else Count(size, (0,), (ONE,))


def _range(node: gs.Node, known: list[Known]) -> Known | None:
    start, limit, delta = known
    if not (isinstance(start, Count) and isinstance(limit, Count) and isinstance(delta, Count)):
        return None
    step = delta.everywhere
    if step is None:
        return None
    length = limit.start - start.start if step == 1 else None
    return count_of(start.start, (step,), _dims(node.outputs[0], (length,)))


def _same(node: gs.Node, known: list[Known]) -> Known | None:
    return known[0]


def _cast(node: gs.Node, known: list[Known]) -> Known | None:
    """Casts between int32 and int64, and of bool; values that do not fit are not positions."""
    (x,) = known
    if attribute_of(node, "to", None) in (6, 7):
        return x if isinstance(x, Count) else None
    truth = isinstance(x, Region) or x.everywhere in (0, 1)
    return x if attribute_of(node, "to", None) == 9 and truth else None


def _unsqueeze(node: gs.Node, known: list[Known]) -> Known | None:
    axes = axes_of(node)
    if axes is None:
        return None

    def change(count: Count) -> Count:
        rank = len(count.dims) + len(axes)
        steps, dims = list(count.steps), list(count.dims)
        for axis in sorted(axis % rank for axis in axes):
            steps.insert(axis, 0)
            dims.insert(axis, ONE)
        return Count(count.start, tuple(steps), tuple(dims))

    return each(known[0], change)


def _squeeze(node: gs.Node, known: list[Known]) -> Known | None:
    axes = axes_of(node)

    def change(count: Count) -> Count:
        rank = len(count.dims)
        gone = {i for i in range(rank) if count.dims[i] == ONE}
        if axes is not None:
            gone = {axis % rank for axis in axes}
        kept = [i for i in range(rank) if i not in gone]
        steps = tuple(count.steps[i] for i in kept)
        return Count(count.start, steps, tuple(count.dims[i] for i in kept))

    sizes_known = all(dim is not None and dim.number is not None for dim in known[0].dims)
    return each(known[0], change) if axes is not None or sizes_known else None


def _expand(node: gs.Node, known: list[Known]) -> Known | None:
    shape = shape_of(node.outputs[0])
    if shape is None:
        return None
    dims = tuple(amount_of(dim) for dim in shape)
    return each(known[0], lambda count: spread(count, dims))


def _transpose(node: gs.Node, known: list[Known]) -> Known | None:
    perm = attribute_of(node, "perm", None)
    if not isinstance(perm, list | tuple):
        return None

    def change(count: Count) -> Count:
        steps = tuple(count.steps[axis] for axis in perm)
        return Count(count.start, steps, tuple(count.dims[axis] for axis in perm))

    return each(known[0], change)


def _spread_over(node: gs.Node, known: list[Known]) -> Known | None:
    """Elements of a tensor whose elements are all equal."""
    value, shape = getattr(known[0], "everywhere", None), shape_of(node.outputs[0])
    dims = None if shape is None else tuple(amount_of(dim) for dim in shape)
    return None if value is None or dims is None else _constant(value, dims)


def _select(node: gs.Node, known: list[Known]) -> Known | None:
    """One element along an axis."""
    index, axis = ints_of(node.inputs[1]), attribute_of(node, "axis", 0)
    if index is None or len(index) != 1 or index[0] < 0 or not isinstance(known[0], Count):
        return None
    count, keeps = known[0], len(node.inputs[1].shape)
    if keeps > 1:
        return None
    axis %= len(count.dims)
    start = count.start + count.steps[axis] * index[0]
    steps, dims = list(count.steps), list(count.dims)
    steps[axis : axis + 1], dims[axis : axis + 1] = [0] * keeps, [ONE] * keeps
    return Count(start, tuple(steps), tuple(dims))


def _slice(node: gs.Node, known: list[Known]) -> Known | None:
    count = known[0]
    bounds = [ints_of(tensor) for tensor in list(node.inputs)[1:5]]
    if not isinstance(count, Count) or any(bound is None or len(bound) != 1 for bound in bounds):
        return _spread_over(node, known)
    (start, end, axis, step) = (*(b[0] for b in bounds if b), *[0, 1][len(bounds) - 2 :])
    axis %= len(count.dims)
    size = count.dims[axis]
    if start < 0 or step != 1:
        return None
    length = None
    if size is not None and (end < 0 or end >= _FAR):
        length = size + min(0, end) - start
    elif size is not None and size.number is not None:
        length = Amount(min(end, size.number) - start)
    dims = list(count.dims)
    dims[axis] = length
    origin = count.start + count.steps[axis] * start
    return count_of(origin, count.steps, _dims(node.outputs[0], tuple(dims)))


def _concat(node: gs.Node, known: list[Known]) -> Known | None:
    """Parts of which each continues the one before."""
    parts = [part for part in known if isinstance(part, Count)]
    if len(parts) < len(node.inputs) or not parts[0].dims:
        return None
    axis = attribute_of(node, "axis", 0) % len(parts[0].dims)
    sizes = [part.dims[axis] for part in parts]
    steps = next((part.steps for part in parts if part.dims[axis] != ONE), None)
    if steps is None or any(size is None for size in sizes):
        return None
    offset = Amount()
    for part, size in zip(parts, sizes, strict=True):
        own = [0 if i == axis and size == ONE else step for i, step in enumerate(steps)]
        if part.start != parts[0].start + offset * steps[axis] or part.steps != tuple(own):
            return None
        offset += size or 0
    dims = list(parts[0].dims)
    dims[axis] = offset
    return Count(parts[0].start, steps, tuple(dims))


def _sums(node: gs.Node, known: list[Known]) -> Known | None:
    """CumSum of a tensor whose elements are all equal."""
    axis = ints_of(node.inputs[1])
    if not isinstance(known[0], Count) or axis is None or known[0].everywhere is None:
        return None
    count, value = known[0], known[0].everywhere
    if any(attribute_of(node, name, 0) != 0 for name in ("exclusive", "reverse")):
        return count if value == 0 else None
    steps = [0] * len(count.dims)
    steps[axis[0]] = value or 0
    return count_of(count.start, steps, count.dims)


def _combined(node: gs.Node, known: list[Known], sign: int) -> Count | None:
    """The sum, or the difference, of two counts."""
    a, b = known
    if not isinstance(a, Count) or not isinstance(b, Count):
        return None
    dims = _dims(node.outputs[0], joint(a.dims, b.dims))
    first, second = spread(a, dims), spread(b, dims)
    if first is None or second is None:
        return None
    steps = [x + sign * y for x, y in zip(first.steps, second.steps, strict=True)]
    return Count(first.start + second.start * sign, tuple(steps), dims)


def _product(node: gs.Node, known: list[Known]) -> Known | None:
    for count, other in (known, known[::-1]):
        factor = other.everywhere if isinstance(other, Count) else None
        if factor is None or not isinstance(count, Count) or len(other.dims) > len(count.dims):
            continue
        if all(dim == ONE for dim in other.dims):
            steps = tuple(step * factor for step in count.steps)
            return Count(count.start * factor, steps, count.dims)
    return None


def _constant(value: int, dims: Dims) -> Count:
    return Count(Amount(value), (0,) * len(dims), dims)


def _where_not_above(excess: Count | None) -> Known | None:
    """Return the mask of a count's elements that are not above zero."""
    if excess is None:
        return None
    if excess.most is not None and excess.most <= 0:
        return _constant(1, excess.dims)
    negative = Count(excess.start * -1, tuple(-step for step in excess.steps), excess.dims)
    if negative.most is not None and negative.most < 0:
        return _constant(0, excess.dims)
    return Region((excess,), excess.dims)


def _compared(*, swapped: bool, strict: bool) -> Rule:
    def rule(node: gs.Node, known: list[Known]) -> Known | None:
        difference = _combined(node, known, -1)
        if difference is None:
            return None
        if swapped:
            steps = tuple(-step for step in difference.steps)
            difference = Count(difference.start * -1, steps, difference.dims)
        excess = Count(difference.start + int(strict), difference.steps, difference.dims)
        return _where_not_above(excess)

    return rule


def _equal(node: gs.Node, known: list[Known]) -> Known | None:
    difference = _combined(node, known, -1)
    if difference is None or difference.everywhere is None:
        return None
    return _constant(int(difference.everywhere == 0), difference.dims)


def _not(node: gs.Node, known: list[Known]) -> Known | None:
    value = known[0].everywhere if isinstance(known[0], Count) else None
    return None if value is None else _constant(1 - value, known[0].dims)


def _and(node: gs.Node, known: list[Known]) -> Known | None:
    dims = _dims(node.outputs[0], joint(known[0].dims, known[1].dims))
    excesses: list[Count] = []
    for one in known:
        if isinstance(one, Count):
            if one.everywhere != 1:
                return None
            continue
        wide = [spread(excess, dims) for excess in one.excesses]
        if any(excess is None for excess in wide):
            return None
        excesses += [excess for excess in wide if excess is not None and excess not in excesses]
    return Region(tuple(excesses), dims) if excesses else _constant(1, dims)


Rule = Callable[[gs.Node, list[Known]], Known | None]

RULES: dict[str, tuple[Rule, int | None]] = {
    "Shape": (_shape, 0),
    "Range": (_range, 3),
    "Identity": (_same, 1),
    "Cast": (_cast, 1),
    "Unsqueeze": (_unsqueeze, 1),
    "Squeeze": (_squeeze, 1),
    "Expand": (_expand, 1),
    "Transpose": (_transpose, 1),
    "Gather": (_select, 1),
    "GatherElements": (_spread_over, 1),
    "Slice": (_slice, 1),
    "Concat": (_concat, None),
    "CumSum": (_sums, 1),
    "Add": (lambda node, known: _combined(node, known, 1), 2),
    "Sub": (lambda node, known: _combined(node, known, -1), 2),
    "Mul": (_product, 2),
    "LessOrEqual": (_compared(swapped=False, strict=False), 2),
    "Less": (_compared(swapped=False, strict=True), 2),
    "GreaterOrEqual": (_compared(swapped=True, strict=False), 2),
    "Greater": (_compared(swapped=True, strict=True), 2),
    "Equal": (_equal, 2),
    "Not": (_not, 1),
    "And": (_and, 2),
}
"""The rule of each op, and the number of inputs that must be known; None for all."""
