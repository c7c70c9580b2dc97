"""Where torch's CPU leaves equal elements: std::sort, std::nth_element and its quick select.

torch documents no order for them, but computes one: that of the GNU C++ library, which torch's
Linux builds contain. A sort of many equal elements (booleans) and a selection among integers give
torch's indices, not only its values. All rows, and all segments of a row, are partitioned at once:
an element that stops the left scan as the i-th trades places with the i-th that stops the right
scan, for as long as it stands left of it. The fallback to heaps after 2 log2(n) bad pivots is
left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from coreai_onnx.lower.aten.indices import positions
from coreai_onnx.lower.aten.iteration import any_true, repeat_while
from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.values import Dim, Value, dims_of, set_dims

SMALL = 16
"""std::sort leaves segments of so many elements to a stable insertion sort."""
_SELECTED = 3
"""std::nth_element leaves so many to it."""
HEAPED = 64
"""torch.topk selects with heaps where k * 64 <= n."""


@dataclass
class _Rows:
    """Rows of int64 keys [rows, n] under a permutation, in segments [first, last).

    Attributes:
        op: Makes the nodes.
        keys: The keys, as they were given.
        order: Which key stands at each place.
        first: Where the segment of each place begins.
        last: Where it ends.
    """

    op: OpBuilder
    keys: Value
    order: Value
    first: Value
    last: Value

    @property
    def places(self) -> Value:
        """0 … n - 1 in every row."""
        op, dims = self.op, dims_of(self.keys)
        return set_dims(op.Expand(positions(op, dims[1]), op.shape(dims)), dims)

    def values(self) -> Value:
        """Return the keys in the present order."""
        return self.at(self.keys, self.order)

    def at(self, x: Value, places: Value) -> Value:
        """Return what stands at places; those outside the row give anything."""
        op = self.op
        last = op.Sub(op.dim(dims_of(self.keys)[1]), 1)
        inside = op.Max(op.Min(places, last), 0)
        return set_dims(op.GatherElements(x, inside, axis=1), dims_of(self.keys))

    def moved(self, source: Value) -> None:
        """Take at each place what stands at its source."""
        self.order = self.at(self.order, source)

    def exchange(self, a: Value, b: Value, when: Value) -> None:
        """Exchange two places of every segment under a condition."""
        op, places = self.op, self.places
        to_a, to_b = op.And(when, op.Equal(places, b)), op.And(when, op.Equal(places, a))
        self.moved(op.Where(to_a, a, op.Where(to_b, b, places)))

    def exchange_if_less(self, a: Value, b: Value, when: Value) -> None:
        """Exchange two places if the second is less."""
        values = self.values()
        less = self.op.Less(self.at(values, b), self.at(values, a))
        self.exchange(a, b, self.op.And(when, less))

    def ranks(self, flags: Value, start: Value) -> Value:
        """Count the flags of the segment up to each place; ``start`` carries none."""
        op = self.op
        counts = op.CumSum(op.cast(flags, torch.int64), op.const(1))
        return op.Sub(counts, self.at(counts, start))

    def first_of(self, flags: Value, start: Value, slot: Value, none: Value) -> Value:
        """Return, at each place, the first flagged place of its segment."""
        op = self.op
        alone = op.And(flags, op.Equal(self.ranks(flags, start), 1))
        return self.at(self.table(alone, slot, none), slot)

    def table(self, flags: Value, slots: Value, empty: Value) -> Value:
        """Return, at slots, the places that are flagged; no two have one slot."""
        op, places = self.op, self.places
        size = op.dim(dims_of(self.keys)[1])
        wide = op.Concat(empty, op.Slice(empty, [0], [1], [1]), axis=1)
        index = op.Where(flags, slots, size)
        return op.Slice(op.ScatterElements(wide, index, places, axis=1), [0], [-1], [1])

    def traded(self, left: Value, right: Value, start: Value, stop: Value) -> tuple[Value, Value]:
        """Exchange the i-th of ``left`` with the i-th of ``right`` from the end, until they meet.

        Args:
            left: What stops the left scan, within (start, stop].
            right: What stops the right scan, within (start, stop].
            start: A place before all of them.
            stop: The last place.

        Returns:
            Which places took part from the left, and which from the right.
        """
        op, places = self.op, self.places
        i, below = self.ranks(left, start), self.ranks(right, start)
        above = op.Sub(self.at(below, stop), below)
        from_left = op.And(left, op.GreaterOrEqual(above, i))
        before = op.Sub(i, op.cast(left, torch.int64))
        j = op.Add(above, 1)
        from_right = op.And(right, op.GreaterOrEqual(before, j))
        lefts = self.table(from_left, op.Add(start, i), places)
        rights = self.table(from_right, op.Add(start, j), places)
        source = op.Where(
            from_left,
            self.at(rights, op.Add(start, i)),
            op.Where(from_right, self.at(lefts, op.Add(start, j)), places),
        )
        self.moved(source)
        return from_left, from_right

    def partition(self, when: Value) -> Value:
        """std::__unguarded_partition_pivot: return where each segment is cut."""
        op, first, last = self.op, self.first, self.last
        middle = op.Add(first, op.Div(op.Sub(last, first), 2))
        self._median_to_first(op.Add(first, 1), middle, op.Sub(last, 1), when)
        values, places = self.values(), self.places
        pivot = self.at(values, first)
        inside = op.And(when, op.And(op.Greater(places, first), op.Less(places, last)))
        left = op.And(inside, op.GreaterOrEqual(values, pivot))
        right = op.And(inside, op.LessOrEqual(values, pivot))
        from_left, from_right = self.traded(left, right, first, op.Sub(last, 1))
        stops = op.Or(op.And(left, op.Not(from_left)), from_right)
        return self.first_of(stops, first, first, places)

    def _median_to_first(self, a: Value, b: Value, c: Value, when: Value) -> None:
        """Exchange the first place with the median of three, as std::__move_median_to_first."""
        op, values = self.op, self.values()
        x, y, z = (self.at(values, p) for p in (a, b, c))
        rising = op.Where(op.Less(y, z), b, op.Where(op.Less(x, z), c, a))
        falling = op.Where(op.Less(x, z), a, op.Where(op.Less(y, z), c, b))
        self.exchange(self.first, op.Where(op.Less(x, y), rising, falling), when)

    def settled(self) -> None:
        """Sort what segments of three are left, stably."""
        op, first = self.op, self.first
        for a, b in ((0, 1), (1, 2), (0, 1)):
            second = op.Add(first, b)
            self.exchange_if_less(op.Add(first, a), second, op.Less(second, self.last))


def _rows(op: OpBuilder, keys: Value, last: Value | None = None) -> _Rows:
    dims = dims_of(keys)
    zeros = set_dims(op.Expand(op.const(0), op.shape(dims)), dims)
    rows = _Rows(op, keys, zeros, zeros, zeros)
    rows.order = rows.places
    end = op.dim(dims[1]) if last is None else last
    rows.last = set_dims(op.Add(zeros, end), dims)
    return rows


def _looped(
    rows: _Rows, open_: Callable[[_Rows], Value], step: Callable[[_Rows, Value], None]
) -> None:
    """Repeat a step on the segments that are still open, until none is."""
    keys = rows.keys

    def test(op: OpBuilder, state: list[Value]) -> Value:
        return any_true(op, open_(_Rows(op, keys, *state)))

    def turn(op: OpBuilder, state: list[Value]) -> list[Value]:
        inner = _Rows(op, keys, *state)
        step(inner, open_(inner))
        after = (inner.order, inner.first, inner.last)
        return [set_dims(x, dims_of(keys)) for x in after]

    state = [rows.order, rows.first, rows.last]
    rows.order, rows.first, rows.last = repeat_while(rows.op, state, test, turn)


def sorted_order(op: OpBuilder, keys: Value, last: Value | None = None) -> Value:
    """Return the order std::sort gives the rows of keys [rows, n].

    Args:
        op: Makes the loop.
        keys: int64 keys, ascending.
        last: How many of each row are sorted; the rest stay. All by default.
    """
    rows = _rows(op, keys, last)

    def step(rows: _Rows, when: Value) -> None:
        op, places = rows.op, rows.places
        cut = rows.partition(when)
        before = op.Less(places, cut)
        rows.last = op.Where(op.And(when, before), cut, rows.last)
        rows.first = op.Where(op.And(when, op.Not(before)), cut, rows.first)

    def open_(rows: _Rows) -> Value:
        op = rows.op
        inside = op.Less(rows.places, rows.last)
        return op.And(inside, op.Greater(op.Sub(rows.last, rows.first), SMALL))

    _looped(rows, open_, step)
    values, size = rows.values(), op.dim(dims_of(keys)[1])
    if last is not None:  # what is not sorted stays behind what is
        values = op.Where(op.Less(rows.places, last), values, op.const(2**63 - 1))
    _, index = op.TopK(values, op.Reshape(size, [1]), axis=1, largest=0, _outputs=2)
    return rows.at(rows.order, index)


def selected_order(op: OpBuilder, keys: Value, k: Dim, *, sort: bool) -> Value:
    """Return the order of rows after std::nth_element for the k-th, the k - 1 before it sorted."""
    rows = _rows(op, keys)
    nth = op.Sub(op.dim(k), 1)

    def step(rows: _Rows, when: Value) -> None:
        op = rows.op
        cut = rows.partition(when)
        left = op.LessOrEqual(cut, nth)
        rows.first = op.Where(op.And(when, left), cut, rows.first)
        rows.last = op.Where(op.And(when, op.Not(left)), cut, rows.last)

    def open_(rows: _Rows) -> Value:
        return rows.op.Greater(rows.op.Sub(rows.last, rows.first), _SELECTED)

    _looped(rows, open_, step)
    rows.settled()
    if not sort:
        return rows.order
    return rows.at(rows.order, sorted_order(op, rows.values(), nth))


def quick_selected(op: OpBuilder, keys: Value, k: Dim) -> Value:
    """Return the index of the k-th least key of each row [rows], as torch.kthvalue selects it."""
    rows = _rows(op, keys)
    rows.last = op.Sub(rows.last, 1)  # the last place itself, here
    nth = op.Sub(op.dim(k), 1)

    def step(rows: _Rows, when: Value) -> None:
        op, first, last, places = rows.op, rows.first, rows.last, rows.places
        second = op.Add(first, 1)
        rows.exchange(op.Add(first, op.Div(op.Sub(last, first), 2)), second, when)
        rows.exchange_if_less(second, last, when)
        rows.exchange_if_less(first, last, when)
        rows.exchange_if_less(second, first, when)
        values = rows.values()
        pivot = rows.at(values, first)
        left = op.And(op.Greater(places, second), op.LessOrEqual(places, last))
        left = op.And(op.And(when, left), op.GreaterOrEqual(values, pivot))
        right = op.And(op.Greater(places, first), op.Less(places, last))
        right = op.And(op.And(when, right), op.LessOrEqual(values, pivot))
        i, below = rows.ranks(left, first), rows.ranks(right, first)
        above = op.Sub(rows.at(below, last), below)
        met = op.And(op.And(left, right), op.Equal(i, op.Add(above, 1)))
        from_left, from_right = rows.traded(left, right, first, last)
        stops = op.Or(op.And(left, op.Not(op.Or(from_left, met))), from_right)
        next_ = rows.first_of(stops, first, first, places)
        meets = op.Or(op.And(right, op.Not(op.Or(from_right, met))), from_left)
        total = rows.at(rows.ranks(meets, first), last)
        final = op.And(meets, op.Equal(rows.ranks(meets, first), total))
        middle = rows.at(rows.table(final, first, places), first)
        rows.exchange(first, middle, when)
        up, down = op.LessOrEqual(middle, nth), op.GreaterOrEqual(middle, nth)
        rows.first = op.Where(op.And(when, up), next_, first)
        rows.last = op.Where(op.And(when, down), op.Sub(middle, 1), last)

    def open_(rows: _Rows) -> Value:
        return rows.op.Greater(rows.op.Sub(rows.last, rows.first), 1)

    _looped(rows, open_, step)
    pair = op.Equal(op.Sub(rows.last, rows.first), 1)
    rows.exchange_if_less(rows.first, rows.last, pair)
    return set_dims(op.Gather(rows.order, nth, axis=1), dims_of(keys)[:1])
