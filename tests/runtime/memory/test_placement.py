"""Offsets of buffers: greedy and naive, functions of the user's own, and their checks."""

from __future__ import annotations

import random

import pytest

from coreai_onnx.errors import PassError
from coreai_onnx.runtime.memory.placement import PlannedBuffer, greedy, naive, place


def buffers(*spans: tuple[int, int, int]) -> list[PlannedBuffer]:
    return [
        PlannedBuffer((f"b{number}",), size, first, last)
        for number, (size, first, last) in enumerate(spans)
    ]


def test_greedy_reuses_memory_and_naive_does_not() -> None:
    some = buffers((100, 0, 1), (30, 1, 2), (100, 2, 3), (20, 3, 4))
    assert greedy(some, 16) == [0, 112, 0, 112]
    assert naive(some, 16) == [0, 112, 144, 256]
    assert greedy([], 16) == naive([], 16) == []


def test_greedy_fills_gaps() -> None:
    assert greedy(buffers((64, 0, 9), (32, 0, 2), (48, 0, 9), (32, 3, 9), (16, 1, 5)), 16) == [
        0, 112, 64, 112, 144,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_plans_of_random_lifetimes_are_valid(seed: int) -> None:
    draw = random.Random(seed)
    some = []
    for _ in range(200):
        first = draw.randrange(100)
        some.append((draw.randrange(0, 500), first, first + draw.randrange(20)))
    peak = max(sum(s for s, first, last in some if first <= t <= last) for t in range(120))
    totals = []
    for algorithm in (greedy, naive):
        placed = place(buffers(*some), algorithm, 32)  # which checks it
        assert all(buffer.offset % 32 == 0 for buffer in placed)
        totals.append(max(buffer.offset + buffer.bytes for buffer in placed))
    assert peak <= totals[0] <= 1.5 * peak < totals[1]


@pytest.mark.parametrize(
    ("algorithm", "fault"),
    [
        (lambda some, alignment: [0, 0], "overlaps b0 and b1, which are both used in step 1"),
        (lambda some, alignment: [0, 96], "overlaps b0 and b1"),
        (lambda some, alignment: [0], r"returned \[0\]\n  return 2 offsets.*multiples of 16"),
        (lambda some, alignment: [0, 104], "multiples of 16"),
        (lambda some, alignment: [0, -16], "multiples of 16"),
        (lambda some, alignment: [0, 112.0], "multiples of 16"),
        (lambda some, alignment: 1 // 0, "raised ZeroDivisionError: integer division"),
        (lambda some, alignment: None, "raised TypeError"),
    ],
)
def test_a_wrong_plan_is_an_error(algorithm, fault) -> None:
    with pytest.raises(PassError, match=f"(?s)the memory plan .*{fault}"):
        place(buffers((100, 0, 1), (30, 1, 2)), algorithm, 16)


def test_buffers_that_are_not_used_at_once_may_overlap() -> None:
    some = buffers((100, 0, 1), (30, 2, 3))
    placed = place(some, lambda some, alignment: [0, 0], 16)
    assert [buffer.offset for buffer in placed] == [0, 0]
