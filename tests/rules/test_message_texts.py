"""Only ``coreai_onnx/model/dependencies.py`` has texts of messages by which the package decides.

Followed are the texts of exceptions and log records within a function, and through calls by name
into other functions of the package.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping

import pytest

from tests.rules.tree import sources, text

TABLE = "coreai_onnx.model.dependencies"
EXCEPTIONS = {
    "coreai_onnx/model/python/builder/checking.py": (
        "is copied into written packages, which have no table; test_dependencies.py provokes both"
    ),
    "coreai_onnx/export/capture/explain.py": "looks for the names of the model's own sizes",
    "coreai_onnx/runtime/libraries/platforms.py": "reads a message of glibc, no package",
    "coreai_onnx/export/guards.py": "looks for guards, printed as torch does, and names of sizes",
}
"""Files that match on messages for another reason."""
COMPARING = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"}
COMPARING |= {"startswith", "endswith", "partition", "rpartition", "replace", "removeprefix"}
PLAIN = {"\n", "", " ", "."}
"""Constants that only take a message apart."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def inside(function: Function) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(function))


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


@functools.cache
def errors_of(function: Function) -> set[str]:
    """The names of a function's caught errors, and of parameters that are errors."""
    caught = {n.name for n in inside(function) if isinstance(n, ast.ExceptHandler) and n.name}
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
        for node in inside(function):
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

    def has_message(*parts: ast.expr) -> bool:
        return any(is_message(part, errors, messages) for part in parts)

    for node in inside(function):
        match node:
            case ast.Compare(
                left=left, ops=[ast.In() | ast.NotIn() | ast.Eq()], comparators=[text]
            ):
                if has_message(left, text) and not is_plain(left):
                    yield node
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=[first, *rest]):
                if method not in COMPARING or ast.unparse(value).endswith(".pattern"):
                    continue
                is_method = has_message(value) and not is_plain(first)
                if is_method or (not has_message(value) and has_message(first, *rest)):
                    yield node


Place = tuple[str, str]
"""A file and a function in it."""


def findings(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the places that decide by the text of an error: file, and line with expression."""
    functions: dict[Place, Function] = {}
    for name, source in files.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, Function):
                functions[name, node.name] = node
    by_name: dict[str, list[Place]] = {}
    for place in functions:
        by_name.setdefault(place[1], []).append(place)
    received: dict[Place, set[str]] = {place: set() for place in functions}
    waiting = list(functions)
    while waiting:
        place = waiting.pop()
        function, errors = functions[place], errors_of(functions[place])
        messages = messages_of(function, received[place], errors)
        for name, index in passed(function, messages, errors):
            homes = by_name.get(name, [])
            # A function of the file, or one of a name that is unique.
            called = (place[0], name) if (place[0], name) in functions else (homes or [place])[0]
            parameters = [a.arg for a in functions[called].args.args]
            is_known = called[0] == place[0] or len(homes) == 1
            if is_known and not received[called].issuperset(parameters[index : index + 1]):
                received[called].add(parameters[index])
                waiting.append(called)
    return [
        (place[0], f"{node.lineno}: {ast.unparse(node)}")
        for place, function in functions.items()
        for errors in [errors_of(function)]
        for node in matches(function, messages_of(function, received[place], errors), errors)
    ]


def passed(function: Function, messages: set[str], errors: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the functions that get the text of an error, with the number of the argument."""
    for node in inside(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for index, argument in enumerate(node.args):
                if is_message(argument, errors, messages):
                    yield node.func.id, index


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
        HEAD + "return _PLACE.sub('', str(error))",
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
