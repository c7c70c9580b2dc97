"""Tables and sizes."""

from __future__ import annotations

import pytest

from coreai_onnx.model.table import render, size_text


def test_numbers_are_right_aligned_and_text_is_left_aligned() -> None:
    lines = render(("op", "n"), [("Add", 3), ("MatMul", 12)]).splitlines()
    assert lines == ["op       n", "------  --", "Add      3", "MatMul  12"]


def test_a_table_without_rows_is_its_header() -> None:
    assert render(("a", "bb"), []) == "a  bb\n-  --"


def test_indent_stands_before_every_line() -> None:
    assert all(line.startswith("  ") for line in render(("a",), [("b",)], indent="  ").splitlines())


def test_one_long_cell_does_not_widen_the_others() -> None:
    rows = [("x" * 100_000, 1), *(("y", 2) for _ in range(1000))]
    assert len(render(("name", "n"), rows)) < 400_000


def test_rows_of_another_length_are_an_error() -> None:
    with pytest.raises((ValueError, IndexError)):
        render(("a", "b"), [("only one",)])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text
