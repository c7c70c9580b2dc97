"""Only ``coreai_onnx/dependencies.py`` has texts of messages by which the package decides.

Followed are the texts of exceptions and log records within a function, and through calls by name
into other functions of the package.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping

import pytest

from tests.rules.tree import sources, text

TABLE = "coreai_onnx.dependencies"
EXCEPTIONS = {
    "coreai_onnx/model/python/builder/checking.py": (
        "is copied into written packages, which have no table; test_dependencies.py provokes both"
    ),
    "coreai_onnx/export/capture/larger_examples.py": (
        "looks for guards, which it prints as torch prints them"
    ),
}
"""Files that match on messages for another reason."""
COMPARING = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"}
COMPARING |= {"startswith", "endswith", "partition", "rpartition", "replace", "removeprefix"}
PLAIN = {"\n", "", " ", "."}
"""Constants that only take a message apart."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_message(node: ast.expr, errors: set[str], messages: set[str]) -> bool:
    """Whether an expression is, or is made from, the text of an error or a log record."""
    match node:
        case ast.Name(id=name):
            return name in messages
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[value]):
            return (isinstance(value, ast.Name) and value.id in errors) or (
                isinstance(value, ast.Attribute) and value.attr in ("__cause__", "msg")
            )
        case ast.Call(func=ast.Attribute(attr="getMessage")):
            return True
        case ast.Call(func=ast.Attribute(value=inner), args=args):
            return any(is_message(part, errors, messages) for part in (inner, *args))
        case ast.Subscript(value=inner):
            return is_message(inner, errors, messages)
    return False


def errors_of(function: Function) -> set[str]:
    """The names of a function's caught errors, and of parameters that are errors."""
    caught = {n.name for n in ast.walk(function) if isinstance(n, ast.ExceptHandler) and n.name}
    parameters = (*function.args.args, *function.args.kwonlyargs)
    typed = {
        a.arg
        for a in parameters
        if a.annotation and any(w in ast.unparse(a.annotation) for w in ("Error", "Exception"))
    }
    return caught | typed


def messages_of(function: Function, parameters: set[str], errors: set[str]) -> set[str]:
    """The names of a function's variables that hold the text of an error, or a part of it."""
    messages = set(parameters)
    for _ in range(3):  # a part of a part
        for node in ast.walk(function):
            pairs: list[tuple[ast.expr, ast.expr]] = []
            if isinstance(node, ast.Assign):
                pairs = [(target, node.value) for target in node.targets]
            elif isinstance(node, (ast.For, ast.comprehension)):
                pairs = [(node.target, node.iter)]
            for target, value in pairs:
                if is_message(value, errors, messages):
                    messages |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return messages


def is_plain(sought: ast.expr) -> bool:
    """Whether a text only takes a message apart, or is a name of the model in an f-string."""
    constant = isinstance(sought, ast.Constant) and sought.value in PLAIN
    return constant or isinstance(sought, ast.JoinedStr)


def matches(function: Function, messages: set[str], errors: set[str]) -> Iterator[ast.expr]:
    """Yield the expressions that compare the text of an error with a text."""
    for node in ast.walk(function):
        match node:
            case ast.Compare(
                left=left, ops=[ast.In() | ast.NotIn() | ast.Eq()], comparators=[right]
            ):
                if any(is_message(side, errors, messages) for side in (left, right)):
                    yield node
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=args):
                if method not in COMPARING or ast.unparse(value).endswith(".pattern"):
                    continue
                if (
                    args
                    and not is_plain(args[0])
                    and any(is_message(x, errors, messages) for x in (value, *args))
                ):
                    yield node


def findings(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the places that decide by the text of an error: file, and line with expression."""
    functions: dict[str, list[tuple[str, Function]]] = {}
    for name, source in files.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, Function):
                functions.setdefault(node.name, []).append((name, node))
    received: dict[str, set[str]] = {name: set() for name in functions}
    changed = True
    while changed:
        changed = False
        for name, definitions in functions.items():
            for _, function in definitions:
                errors = errors_of(function)
                messages = messages_of(function, received[name], errors)
                for called, parameter in passed(function, functions, messages, errors):
                    changed |= parameter not in received[called]
                    received[called].add(parameter)
    return [
        (file, f"{node.lineno}: {ast.unparse(node)}")
        for name, definitions in functions.items()
        for file, function in definitions
        for node in matches(
            function,
            messages_of(function, received[name], errors_of(function)),
            errors_of(function),
        )
    ]


def passed(
    function: Function,
    functions: Mapping[str, list[tuple[str, Function]]],
    messages: set[str],
    errors: set[str],
) -> Iterator[tuple[str, str]]:
    """Yield the functions of a unique name that get the text of an error, with the parameter."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            definitions = functions.get(node.func.id, [])
            if len(definitions) == 1:
                parameters = definitions[0][1].args.args
                for argument, parameter in zip(node.args, parameters, strict=False):
                    if is_message(argument, errors, messages):
                        yield node.func.id, parameter.arg


@functools.cache
def of_the_package() -> tuple[tuple[str, str], ...]:
    files = {name: text(name) for name in sources(".py") if name.startswith("coreai_onnx/")}
    return tuple(findings(files))


def test_texts_of_messages_are_in_one_table() -> None:
    wrong = [f"{file}:{place}" for file, place in of_the_package() if file not in EXCEPTIONS]
    assert not wrong, f"put these texts into {TABLE}:\n" + "\n".join(wrong)


def test_each_exception_is_needed() -> None:
    assert EXCEPTIONS.keys() <= {file for file, _ in of_the_package()}


HEAD = "def f(error: Exception):\n    "


@pytest.mark.parametrize(
    "source",
    [
        HEAD + "return 'no kernel' in str(error)",
        HEAD + "return re.search('no kernel', str(error))",
        HEAD + "return _TEXT.match(str(error.__cause__))",
        HEAD + "return str(error).startswith('no kernel')",
        HEAD + "text = str(error)\n    return any('x' in line for line in text.splitlines())",
        "def f(record):\n    return 'x' in record.getMessage()",
        (
            "def f():\n    try: g()\n    except ValueError as e: return h(str(e))\n"
            "def h(message): return 'no kernel' in message"
        ),
    ],
)
def test_a_match_is_seen(source: str) -> None:
    assert findings({"a.py": source})


@pytest.mark.parametrize(
    "source",
    [
        HEAD + "return TEXT.is_in(error)",
        HEAD + "return TEXT.pattern.search(str(error))",
        HEAD + "return str(error).partition('\\n')[0]",
        HEAD + "return f'cannot load: {error}'",
        "def f(text: str):\n    return 'no kernel' in text",
    ],
)
def test_other_code_is_left_alone(source: str) -> None:
    assert not findings({"a.py": source})
