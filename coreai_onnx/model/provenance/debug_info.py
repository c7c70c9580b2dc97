"""Debug information in files: on each node, in one table, or not at all.

In memory every node carries its module path, class and source line. Written on each node, they
make up half of a decoder's graph. The table holds the same in a few hundred bytes: a module path is
most of a node's name, a class is stored once for all layers, and source lines are numbers that are
run-length encoded. A key of each node, made from its name and its first result, finds the nodes
again in a file in which another tool added, removed or moved nodes.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from itertools import groupby
from typing import Any, Literal

import onnx_ir as ir

from coreai_onnx.model.inventory import attribute_graphs, roots
from coreai_onnx.model.provenance.source_lines import CODE, VALUES

DebugInfo = Literal["full", "compact", "none"]
"""``full``: on each node; ``compact``: in the model's metadata; ``none``: nowhere."""
LEVELS = ("full", "compact", "none")

SCOPE, CLASS, SOURCE = "coreai.scope", "coreai.class", "coreai.source"
KEYS = (SCOPE, CLASS, SOURCE)
HANDLES = "coreai.debug_handles"
"""Key of a call of a delegated part: a JSON object of the source lines of its operators, by the
debug handles that the backend may have written into its bytes."""
TABLE = "coreai.debug_info"

_LONGEST_PATH = 4096
# 18 bits in base64: a short table, in which a few nodes of a large model share a key. A changed
# file then has no source line for them.
_KEY_LENGTH = 3
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@contextmanager
def written_as(model: ir.Model, level: DebugInfo) -> Iterator[None]:
    """Give the nodes of a model, while active, the metadata that a file of this level holds.

    Raises:
        ValueError: If the level is unknown.
    """
    if level not in LEVELS:
        raise ValueError(f"debug_info must be one of {', '.join(LEVELS)}, is {level!r}")
    if level == "full":
        yield
        return
    nodes = [list(_nodes(body)) for body in roots(model)]
    kept = [(node, dict(node.metadata_props)) for body in nodes for node in body]
    # Bodies of composites have no debug information.
    described = [body if any(map(_has_keys, body)) else [] for body in nodes]
    table = _table(described) if level == "compact" else None
    entries = (CODE, VALUES) if level == "none" else ()
    left_out = {
        key: model.metadata_props.pop(key) for key in entries if key in model.metadata_props
    }
    try:
        for node, _ in kept:
            for key in (*KEYS, HANDLES) if level == "none" else KEYS:
                node.metadata_props.pop(key, None)
        if table is not None:
            model.metadata_props[TABLE] = table
        yield
    finally:
        model.metadata_props.pop(TABLE, None)
        model.metadata_props.update(left_out)
        for node, properties in kept:
            node.metadata_props.clear()
            node.metadata_props.update(properties)


def lines_by_handle(node: ir.Node) -> dict[int, str]:
    """Return the lines of a delegated part's operators by debug handle; nothing if unreadable."""
    try:
        lines = json.loads(node.metadata_props.get(HANDLES, "{}"))
        return {int(handle): str(line) for handle, line in dict(lines).items()}
    except (ValueError, TypeError, RecursionError):
        return {}


def restore(model: ir.Model) -> None:
    """Restore the debug information of every node from the table; ignore a table that misfits."""
    text = model.metadata_props.get(TABLE)
    if text is None:
        return
    try:
        table = json.loads(text)
        placed = _placed(model, table)
        runs = [_unpacked(packed, length) for packed, length, _ in placed]
        sources = [""] + [_position(file, n) for file, lines in table["sources"] for n in lines]
        rows = [[sources[number] for number in numbers] for numbers in runs]
        odd = {(body, at): (str(scope), str(name)) for body, at, scope, name in table["odd"]}
        classes = {scope: str(name) for scope, name in dict(table["classes"]).items()}
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        return
    if not placed[0][2] and runs[0]:
        return  # of another model
    del model.metadata_props[TABLE]
    for body, (_, _, nodes) in enumerate(placed):
        for position, node in nodes:
            scope, name = odd.get((body, position)) or _expected(node, classes)
            for key, value in zip(KEYS, (scope, name, rows[body][position]), strict=True):
                if value:
                    node.metadata_props[key] = value


def _has_keys(node: ir.Node) -> bool:
    return bool(node.metadata_props.keys() & set(KEYS))


def _table(bodies: list[list[ir.Node]]) -> str:
    files: dict[str, dict[str, None]] = {}
    for node in (node for body in bodies for node in body):
        if source := node.metadata_props.get(SOURCE):
            file, _, line = source.rpartition(":")
            files.setdefault(file, {})[line] = None
    numbers = {"": 0}
    for file, lines in files.items():
        for line in lines:
            numbers[f"{file}:{line}"] = len(numbers)
    packed = [
        _packed(numbers[node.metadata_props.get(SOURCE, "")] for node in body) for body in bodies
    ]
    classes = _classes(bodies)
    # The name of a node begins with its module, as the converter names it; these do not.
    odd = [
        (body, position, *module)
        for body, nodes in enumerate(bodies)
        for position, node in enumerate(nodes)
        if (module := _module(node)) != _expected(node, classes)
    ]
    table = {
        "classes": classes,
        "odd": odd,
        "sources": [(file, list(lines)) for file, lines in files.items()],
        "nodes": packed,
        "keys": ["".join(map(_key, nodes)) for nodes in bodies],
    }
    return json.dumps(table, separators=(",", ":"), ensure_ascii=False)


def _placed(
    model: ir.Model, table: Mapping[str, Any]
) -> list[tuple[str, int, list[tuple[int, ir.Node]]]]:
    """Return the packed lines of each body in the table, their number, and the nodes they are for.

    A table without keys, of an older file, is valid for the same number of nodes only.
    """
    bodies = [list(_nodes(body)) for body in roots(model)]
    lines = [str(packed) for packed in table["nodes"]]
    # Tables of earlier versions describe all nodes, in order.
    if "keys" not in table:
        pairs = zip(lines, bodies, strict=True)
        return [(packed, len(nodes), list(enumerate(nodes))) for packed, nodes in pairs]
    keys = [
        [text[i : i + _KEY_LENGTH] for i in range(0, len(text), _KEY_LENGTH)]
        for text in map(str, table["keys"])
    ]
    if len(keys) != len(bodies):  # functions were added or removed
        rest = [node for nodes in bodies[1:] for node in nodes]
        bodies = [bodies[0], *([rest] * (len(keys) - 1))]
    placed = [
        _nodes_with_keys(expected, nodes) for expected, nodes in zip(keys, bodies, strict=True)
    ]
    return list(zip(lines, map(len, keys), placed, strict=True))


def _nodes_with_keys(expected: list[str], nodes: list[ir.Node]) -> list[tuple[int, ir.Node]]:
    """Return the nodes with the given keys, with their positions in the table."""
    keys = [_key(node) for node in nodes]
    if keys == expected:
        return list(enumerate(nodes))
    counts = Counter(expected)
    # Of two nodes with one key, either could be meant.
    positions = {key: i for i, key in enumerate(expected) if counts[key] == 1}
    pairs = zip(keys, nodes, strict=True)
    return [(positions[key], node) for key, node in pairs if node.name and key in positions]


def _key(node: ir.Node) -> str:
    """Return three characters that depend on the name of a node and of its first result."""
    result = node.outputs[0].name if node.outputs else ""
    digest = blake2b(f"{node.name}\n{result}".encode(), digest_size=3).digest()
    return urlsafe_b64encode(digest).decode()[:_KEY_LENGTH]


def _classes(bodies: Iterable[Iterable[ir.Node]]) -> dict[str, str]:
    """Return a map from module path to class; ``layers.#`` covers every layer without an entry."""
    modules = (_module(node) for nodes in bodies for node in nodes)
    exact = {scope: name for scope, name in modules if name}
    patterns: dict[str, str] = {}
    for scope, name in exact.items():
        patterns.setdefault(_pattern(scope), name)
    odd = {scope: name for scope, name in exact.items() if patterns[_pattern(scope)] != name}
    return patterns | odd


def _module(node: ir.Node) -> tuple[str, str]:
    return node.metadata_props.get(SCOPE, ""), node.metadata_props.get(CLASS, "")


def _expected(node: ir.Node, classes: Mapping[str, str]) -> tuple[str, str]:
    """Return the module path and class that follow from the node's name and the classes."""
    scope = (node.name or "").rpartition(".")[0]
    return scope, classes.get(scope, classes.get(_pattern(scope), ""))


def _pattern(scope: str) -> str:
    return _NUMBER.sub("#", scope)


def _packed(numbers: Iterable[int]) -> str:
    """Return ``"3*2,5"`` for 3, 3, 5."""
    runs = ((number, sum(1 for _ in run)) for number, run in groupby(numbers))
    return ",".join(f"{number}*{count}" if count > 1 else str(number) for number, count in runs)


def _unpacked(text: str, length: int) -> list[int]:
    """Return the numbers that ``_packed`` encoded.

    Raises:
        ValueError: If these are not ``length`` numbers; a text may encode more than fits in memory.
    """
    pairs = [run.partition("*") for run in text.split(",") if run]
    runs = [(int(number), int(count or 1)) for number, _, count in pairs]
    if sum(count for _, count in runs) != length or any(count < 1 for _, count in runs):
        raise ValueError(f"{length} nodes, but other numbers of source lines")
    return [number for number, count in runs for _ in range(count)]


def _position(file: str, line: str) -> str:
    """Return ``moe.py:41``.

    Raises:
        ValueError: If the name is longer than a path: it would be repeated for each line.
    """
    if len(file) > _LONGEST_PATH or len(line) > _LONGEST_PATH:
        raise ValueError(f"a file name of {len(file)} characters")
    return f"{file}:{line}"


def _nodes(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Yield the nodes of a graph and of the graphs in their attributes, in file order."""
    for node in graph:
        yield node
        # ONNX's attributes have no order, and another tool may have changed it.
        for _, attribute in sorted(node.attributes.items()):
            for inner in attribute_graphs(attribute):
                yield from _nodes(inner)
