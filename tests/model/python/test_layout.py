"""Text in the layout of ruff."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreai_onnx.model.python.layout import (
    Bracket,
    Expression,
    Named,
    call,
    comment,
    keyed,
    laid_out,
    listed,
    quoted,
)


@given(st.text())
def test_quoted_text_is_one_literal_on_one_line(text: str) -> None:
    assert ast.literal_eval(quoted(text)) == text
    assert quoted(text).isprintable()


@given(st.text())
def test_a_comment_is_one_line(text: str) -> None:
    assert comment(text).startswith("#")
    assert comment(text).isprintable()


def formatted(code: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout


LONG = [f"argument_number_{i}" for i in range(9)]
STATEMENTS: list[tuple[str, Expression, str]] = [
    ("x = ", call("op.Add", ["a", "b"]), ""),
    ("x = ", call("op.Add", LONG[:4]), ""),
    ("x = ", call("op.Add", LONG), ""),
    ("x = ", call("f", [call("g", LONG), Named("axes=", listed(["1"] * 40))]), ""),
    ("x = ", listed(LONG), ""),
    ("x = ", keyed((name, listed(LONG)) for name in LONG[:2]), ""),
    ("return ", Bracket("", tuple(LONG)), ""),
    ("return ", Bracket("", tuple(LONG[:4])), ""),
    (f"{', '.join(LONG[:4])} = ", call("some_function_name", LONG[:2]), ""),
    (f"{', '.join(LONG[:4])} = ", call("some_function_name", LONG), ""),
    (f"{', '.join([*LONG[:3], LONG[3] + 'x' * 10])} = ", call("some_function_name", ["a"]), ""),
    (f"{', '.join(LONG[:7])} = ", call("some_function_name", LONG), ""),
    (
        "@",
        call("decorator", [quoted("it's"), quoted('"'), quoted("both ' and \"")]),
        "\ndef f(): 0",
    ),
    ("x = ", call("f", [Bracket("FLOAT", tuple(LONG), "[]"), Bracket("F", ("1",), "[]")]), ""),
]


@pytest.mark.parametrize(("prefix", "expression", "suffix"), STATEMENTS)
def test_ruff_changes_nothing(prefix: str, expression: Expression, suffix: str) -> None:
    code = "\n".join(laid_out(prefix, expression)) + suffix.replace(": 0", ":\n    0") + "\n"
    code = f"def g():\n    {code}" if prefix == "return " and "\n" not in code[:-1] else code
    if prefix == "return ":
        code = "def g():\n" + "\n".join(laid_out(prefix, expression, depth=1)) + "\n"
    assert formatted(code) == code
