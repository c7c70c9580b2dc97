"""Timings."""

from __future__ import annotations

import gc
import time

import pytest

from coreai_onnx.runtime.profile.timing import Timing, Timings, time_interleaved


def test_calls_take_turns_and_the_order_is_reversed_every_other_round() -> None:
    calls: list[str] = []
    timings = time_interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, warmup=1
    )
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert [row.name for row in timings.rows] == ["a", "b"]
    assert all(len(row.seconds) == 3 for row in timings.rows)


def test_what_is_slower_measures_slower() -> None:
    timings = time_interleaved({"fast": lambda: None, "slow": lambda: time.sleep(0.005)}, repeats=3)
    assert timings["slow"].min >= 0.005
    assert timings["fast"].median < timings["slow"].median


def test_minimum_and_median_and_the_table() -> None:
    timings = Timings(
        (Timing("torch", (0.004, 0.002, 0.006)), Timing("ours", (0.001, 0.002, 0.009)))
    )
    assert timings["torch"].min == 0.002
    assert timings["torch"].median == 0.004
    lines = str(timings).splitlines()
    assert lines[2].split() == ["torch", "2.000", "ms", "4.000", "ms", "1.00x"]
    assert lines[3].split() == ["ours", "1.000", "ms", "2.000", "ms", "2.00x"]
    with pytest.raises(KeyError):
        timings["theirs"]


def test_the_garbage_collector_is_put_back_also_after_an_error() -> None:
    states: list[bool] = []

    def failing() -> None:
        states.append(gc.isenabled())
        if len(states) == 2:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        time_interleaved({"a": failing}, warmup=1)
    assert states == [True, False]
    assert gc.isenabled()


def test_nothing_to_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        time_interleaved({})
    with pytest.raises(ValueError, match="at least one"):
        time_interleaved({"a": lambda: None}, repeats=0)
