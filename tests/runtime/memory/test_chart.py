"""Text charts."""

from __future__ import annotations

from coreai_onnx.runtime.memory.chart import chart


def test_bars_and_labels() -> None:
    assert chart([0, 512, 1024], rows=2).splitlines() == ["1.0 KiB │  █", "    0 B │ ██"]


def test_a_bar_is_the_maximum_of_its_steps() -> None:
    lines = chart([1, 8, 2, 4], columns=2, rows=1).splitlines()
    assert lines == ["8 B │█▄"]


def test_no_steps() -> None:
    assert chart([], rows=1) == "0 B │"
