"""Offsets of buffers in one block of memory, by a function that the user may replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coreai_onnx.errors import PassError


@dataclass(frozen=True)
class PlannedBuffer:
    """A buffer of a run.

    Attributes:
        names: Names of the values that use it: the others are views of the first, or written over
            it.
        bytes: Its size.
        first: The step that writes it, an index of `MemoryPlan.nodes`.
        last: The last step that reads it.
        offset: Its first byte in the block.
    """

    names: tuple[str, ...]
    bytes: int
    first: int
    last: int
    offset: int = 0


Algorithm = Callable[[Sequence[PlannedBuffer], int], Sequence[int]]
"""Returns the offsets of buffers, multiples of an alignment: ``algorithm(buffers, alignment)``."""
ALIGNMENT = 16
"""Default alignment of offsets in bytes, that of ExecuTorch."""


def greedy(buffers: Sequence[PlannedBuffer], alignment: int) -> list[int]:
    """Place the largest buffers first, each at the lowest offset that is free while it is used.

    Greedy by size, of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
    Inference" (2020).
    """
    sizes = np.array([buffer.bytes for buffer in buffers], np.int64)
    first = np.array([buffer.first for buffer in buffers], np.int64)
    last = np.array([buffer.last for buffer in buffers], np.int64)
    offsets = np.full(len(buffers), -1, np.int64)
    for index in np.argsort(-sizes, kind="stable"):
        at_once = (first <= last[index]) & (first[index] <= last) & (offsets >= 0)
        others = np.flatnonzero(at_once)
        offset = 0
        for other in others[np.argsort(offsets[others], kind="stable")]:
            if offset + sizes[index] <= offsets[other]:
                break
            end = int(offsets[other] + sizes[other])
            offset = max(offset, -(-end // alignment) * alignment)
        offsets[index] = offset
    return [int(offset) for offset in offsets]


def naive(buffers: Sequence[PlannedBuffer], alignment: int) -> list[int]:
    """Place buffers one after the other, so that each has memory of its own."""
    offsets, end = [], 0
    for buffer in buffers:
        offsets.append(end)
        end += -(-buffer.bytes // alignment) * alignment
    return offsets


def place(
    buffers: Sequence[PlannedBuffer],
    algorithm: Algorithm,
    alignment: int,
    *,
    overlap: bool = False,
) -> tuple[PlannedBuffer, ...]:
    """Return buffers with the offsets that an algorithm chooses, which are checked.

    Raises:
        PassError: If the algorithm raises, returns anything but an offset per buffer, or, unless
            ``overlap``, gives the same memory to buffers that are used at once.
    """
    name = getattr(algorithm, "__name__", type(algorithm).__name__)
    try:
        offsets = list(algorithm(buffers, alignment))
    except Exception as error:  # a user's algorithm may raise anything
        raise PassError(f"the memory plan {name} raised {type(error).__name__}: {error}") from error
    if len(offsets) != len(buffers) or not all(_is_offset(o, alignment) for o in offsets):
        raise PassError(
            f"the memory plan {name} returned {offsets!r:.60}\n"
            f"  return {len(buffers)} offsets, one per buffer, multiples of {alignment}"
        )
    placed = [replace(b, offset=o) for b, o in zip(buffers, offsets, strict=True)]
    if not overlap:
        _check_disjoint(placed, name)
    return tuple(placed)


def _check_disjoint(placed: Sequence[PlannedBuffer], name: str) -> None:
    # In the order of their first steps, a buffer can only overlap those that are still in use,
    # which are few; all pairs of a large model are not.
    active: list[PlannedBuffer] = []
    for buffer in sorted(placed, key=lambda b: b.first):
        active = [other for other in active if other.last >= buffer.first]
        for other in active:
            if (
                buffer.offset < other.offset + other.bytes
                and other.offset < buffer.offset + buffer.bytes
            ):
                raise PassError(
                    f"the memory plan {name} overlaps {other.names[0]} and {buffer.names[0]}, "
                    f"which are both used in step {buffer.first}"
                )
        active.append(buffer)


def _is_offset(value: object, alignment: int) -> bool:
    # A bool is an int for isinstance: False would pass as 0.
    return type(value) is int and value >= 0 and value % alignment == 0
