"""Source files stay under 400 lines and functions under 70, C++ too."""

from __future__ import annotations

import pytest

from tests.rules.functions import cpp_functions, python_functions
from tests.rules.tree import CPP_SUFFIXES, sources, text

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70


def test_files_are_short() -> None:
    long = {
        name: count
        for name in sources(".py", ".sh", ".cmake", "CMakeLists.txt", *CPP_SUFFIXES)
        if (count := len(text(name).splitlines())) >= MAX_FILE_LINES
    }
    assert not long, f"files of {MAX_FILE_LINES} lines and more: {long}"


@pytest.mark.parametrize(
    ("suffixes", "find"), [((".py",), python_functions), (CPP_SUFFIXES, cpp_functions)]
)
def test_functions_are_short(suffixes, find) -> None:
    long = [
        f"{name}:{function.line} {function.name} has {function.length} lines"
        for name in sources(*suffixes)
        for function in find(text(name))
        if function.length >= MAX_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_there_is_something_to_measure() -> None:
    assert any(name.startswith("coreai_onnx/") for name in sources(".py"))
    assert any(name.startswith("custom_ops/") for name in sources(*CPP_SUFFIXES))
