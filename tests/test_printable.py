"""What reaches a terminal."""

from __future__ import annotations

import pytest

from coreai_onnx.printable import LINE_LIMIT, TEXT_LIMIT, printable, printable_lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é → 日本", "plain é → 日本"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("\x9b31m", r"\x9b31m"),  # an escape sequence in one character
        ("a\nb\r", r"a\nb\r"),
        ("\u202eevil", r"\u202eevil"),
        ("\udcff", r"\udcff"),
        ("\x00", r"\x00"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_a_long_text_keeps_its_ends() -> None:
    text = printable("a" * 10**6 + "b")
    assert text.startswith("aaa")
    assert text.endswith("ab")
    assert "999001 characters" in text
    assert len(text) < LINE_LIMIT + 40
    assert len(printable("\x1b" * 10**6)) < LINE_LIMIT + 40


def test_lines_and_tabs_of_a_message_stay() -> None:
    assert printable_lines("one\n\ttwo\x1b\n") == "one\n\ttwo\\x1b\n"


def test_a_long_message_keeps_its_first_and_last_lines() -> None:
    text = printable_lines("\n".join(f"line {i}" for i in range(5000)))
    lines = text.split("\n")
    assert lines[0] == "line 0"
    assert lines[-1] == "line 4999"
    assert any("lines are left out" in line for line in lines)
    assert len(text) < TEXT_LIMIT
    assert len(printable_lines("\n" * 10**6)) < TEXT_LIMIT
