"""Arithmetic and conditions on sizes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coreai_onnx.runtime.tensors.expressions import evaluate, holds, names_in, solve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + 1", 4),
        ("2*a - b", 1),
        ("a // 2", 1),
        ("((a//2)) + 1", 2),
        ("a % 2", 1),
        ("-a + 8", 5),
        ("(a + b)*2", 16),
        ("max(a, b)", 5),
        ("Min(a, b)", 3),
        ("Mod(b, a)", 2),
        ("a // 0", None),
        ("c + 1", None),
        ("open(a)", None),
        ("max(a)", None),
        ("a +", None),
        ("a ** 2", None),
        ("a / 2", None),
        ("'a'", None),
        ("(" * 1500 + "a" + ")" * 1500, None),
        ("-" * 4000 + "a", None),
        ("a" * 100_000, None),
        ("a\0", None),
        ("", None),
    ],
)
def test_dim_expressions(text: str, value: int | None) -> None:
    assert evaluate(text, {"a": 3, "b": 5}) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(b % 5) == 0", True),
        ("a == b", False),
        ("2*a >= b", True),
        ("a > b", False),
        ("a < b", True),
        ("a <= 2", False),
        ("(a // 2) != 1", False),
        ("c == 1", None),
        ("a", None),
        ("a < b < 7", None),
        ("a % 0 == 1", None),
        ("a ==", None),
        ("a is b", None),
    ],
)
def test_conditions(text: str, value: bool | None) -> None:
    assert holds(text, {"a": 3, "b": 5}) is value


def test_names_are_found_in_order() -> None:
    assert names_in("max(b, 2*a) + b") == ("b", "a")
    assert names_in("2 +") == ()


@pytest.mark.parametrize(
    ("text", "size", "solution"),
    [
        ("2*seq", 6, ("seq", Fraction(3))),
        ("2*seq", 7, ("seq", Fraction(7, 2))),
        ("seq + 1", 4, ("seq", Fraction(3))),
        ("7 - n", 3, ("n", Fraction(4))),
        ("a*b", 6, None),
        ("a*a", 9, None),
        ("a // 2", 3, None),
        ("0*a", 0, None),
        ("a +", 1, None),
    ],
)
def test_linear_expressions_are_solved(
    text: str, size: int, solution: tuple[str, Fraction] | None
) -> None:
    assert solve(text, size) == solution


@pytest.mark.parametrize(
    "text",
    ["(" * 100_000, "1" + "+1" * 50_000, "-" * 2_000 + "1", "9" * 5_000, "a\0b", "(" * 150 + "1"],
    ids=["parentheses", "sum", "signs", "digits", "nul", "unclosed"],
)
def test_expressions_of_any_size_are_not_read(text: str) -> None:
    assert evaluate(text, {}) is None
    assert holds(f"{text} == 1", {}) is None
    assert solve(text, 1) is None
