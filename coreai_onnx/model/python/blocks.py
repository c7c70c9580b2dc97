"""The modules of a graph: which nodes are calls of one module, and which of them repeat.

A node knows the module that it came from (``model.layers.3.mlp``). Adjacent nodes of a module form
a block. Blocks of equal structure are calls of one function; what differs between them, their
weights, is named relative to the module.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import onnx_ir as ir

from coreai_onnx.model.provenance.debug_info import CLASS, SCOPE, SOURCE
from coreai_onnx.model.python.constants import Constants
from coreai_onnx.model.python.structure import described, operands

SMALLEST = 4
"""Nodes of a module that becomes a function; smaller ones are read faster where they are."""
SMALLEST_REPEATED = 2
REPETITIONS = 3
"""Modules of a kind from which on the smaller limit holds: a ``linear`` with its bias."""
FEWEST_ITEMS = 3
"""Statements of a function that is called in one place; shorter ones are written there."""
MOST_INPUTS = 10
MOST_OUTPUTS = 6

Path = tuple[str, ...]
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
"""An index of a list, as Python writes the number."""


@dataclass(eq=False)
class ModuleBlock:
    """Adjacent nodes of one module.

    Attributes:
        path: The module's path, ``("model", "layers.3", "mlp")``.
        nodes: The nodes, with those of modules inside.
        items: The nodes and blocks, in order.
    """

    path: Path
    nodes: list[ir.Node]
    items: list[Item] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The module's path as text."""
        return ".".join(self.path)


@dataclass(eq=False)
class BlockFunction:
    """A function for modules of equal structure.

    Attributes:
        block: The first of them, whose nodes the function shows.
        title: The class of the module, or its name.
        inputs: What the first takes from outside, in order of use.
        outputs: Which values it returns: node and output, by position.
        has_weights: Whether it takes the weights of its module.
        items: What is inside.
        calls: Number of modules.
        several: Nodes that come from another line of the user's code in another module.
    """

    block: ModuleBlock
    title: str
    inputs: list[ir.Value]
    outputs: list[tuple[int, int]]
    has_weights: bool
    items: list[Item] = field(default_factory=list)
    calls: int = 0
    several: set[ir.Node] = field(default_factory=set)


@dataclass(eq=False)
class BlockCall:
    """A call of a module's function.

    Attributes:
        function: The function.
        path: The module.
        inputs: Arguments.
        outputs: Results.
        nodes: The nodes that the call makes.
    """

    function: BlockFunction
    path: Path
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    nodes: list[ir.Node]


@dataclass(eq=False)
class Loop:
    """Calls of one function in a row, each of which takes what the one before returned."""

    calls: list[BlockCall]
    carried: dict[int, int]


Item = ir.Node | ModuleBlock | BlockCall | Loop
_Users = dict[ir.Value, list[ir.Node | None]]


def components(scope: str) -> Path:
    """Split a module path; an index stays with its list: ``model.layers.3`` has two parts."""
    parts: list[str] = []
    for part in scope.split(".") if scope else ():
        if _INDEX.fullmatch(part) and parts:
            parts[-1] += f".{part}"
        else:
            parts.append(part)
    return tuple(parts)


def singular(component: str) -> str:
    """Return a part of a path without its index: ``layer`` for ``layers.3``."""
    name, _, index = component.partition(".")
    return name.removesuffix("s") if index else name


def module_items(
    nodes: Sequence[ir.Node], outputs: set[ir.Value], constants: Constants
) -> list[Item]:
    """Return the nodes of a graph as calls of functions, loops, and single nodes, in order."""
    items = _grouped(nodes, ())
    finder = _Finder(items, _users(nodes, outputs), constants)
    resolved = finder.resolved(items, ())
    return _inlined(resolved, Counter(_sites(resolved, set())))


def _sites(items: Iterable[Item], seen: set[BlockFunction]) -> Iterator[BlockFunction]:
    """Yield the function of every call in the code; those in a loop twice, as it repeats."""
    for item in items:
        calls = item.calls[:2] if isinstance(item, Loop) else [item]
        for call in calls:
            if isinstance(call, BlockCall):
                yield call.function
                if call.function not in seen:
                    seen.add(call.function)
                    yield from _sites(call.function.items, seen)


def _inlined(items: Iterable[Item], sites: Counter[BlockFunction]) -> list[Item]:
    """Replace the calls of short functions that are called in one place by their statements."""
    result: list[Item] = []
    for item in items:
        function = item.function if isinstance(item, BlockCall) else None
        if isinstance(item, Loop):
            function = item.calls[0].function
        if function is not None:
            function.items = _inlined(function.items, sites)
        is_here = isinstance(item, BlockCall) and item.path == item.function.block.path
        if (
            function is None
            or not is_here
            or sites[function] > 1
            or len(function.items) >= FEWEST_ITEMS
        ):
            result.append(item)
        else:
            result += function.items
    return result


def _grouped(nodes: Iterable[ir.Node], prefix: Path) -> list[Item]:
    depth = len(prefix)
    items: list[Item] = []
    by_child = groupby(
        nodes, lambda node: components(node.metadata_props.get(SCOPE, ""))[: depth + 1]
    )
    for path, run in by_child:
        members = list(run)
        if len(path) <= depth:
            items += members
        else:
            items.append(ModuleBlock(path, members, _grouped(members, path)))
    return items


class _Finder:
    """Decides which blocks become functions."""

    def __init__(self, items: list[Item], users: _Users, constants: Constants) -> None:
        self.constants = constants
        self.blocks = list(_blocks(items))
        self.users = users
        pieces = Counter(block.path for block in self.blocks)
        # A module whose nodes are in several pieces has no one place to be called in.
        whole = [block for block in self.blocks if pieces[block.path] == 1]
        self.keys = {block: self._key(block) for block in whole}
        self.alike: dict[str, list[ModuleBlock]] = defaultdict(list)
        for block, key in self.keys.items():
            self.alike[key].append(block)
        self.functions: dict[str, BlockFunction | None] = {}

    # ---------------------------------------------------------------- structure
    def _key(self, block: ModuleBlock) -> str:
        lines, _ = described(block.nodes, block.path, self.constants)
        depth = len(block.path)
        scopes = [
            ".".join(components(node.metadata_props.get(SCOPE, ""))[depth:]) for node in block.nodes
        ]
        # Modules of two classes are two functions to the reader, whatever they compute.
        return "\n".join([_title(block), *lines, *scopes])

    def _inputs(self, block: ModuleBlock) -> list[ir.Value]:
        return described(block.nodes, block.path, self.constants)[1]

    def _outputs(self, block: ModuleBlock) -> list[tuple[int, int]]:
        mine = set(block.nodes)
        return [
            (position, value.index() or 0)
            for position, node in enumerate(block.nodes)
            for value in node.outputs
            if any(user not in mine for user in self.users[value])
        ]

    # ---------------------------------------------------------------- decisions
    def function(self, block: ModuleBlock) -> BlockFunction | None:
        """Return the function of a block; None if its nodes stay where they are."""
        key = self.keys.get(block)
        if key is None:
            return None
        if key not in self.functions:
            self.functions[key] = self._made(self.alike[key])
        return self.functions[key]

    def _made(self, blocks: list[ModuleBlock]) -> BlockFunction | None:
        first = blocks[0]
        if len(first.nodes) < (SMALLEST if len(blocks) < REPETITIONS else SMALLEST_REPEATED):
            return None
        inputs = self._inputs(first)
        outputs = sorted({item for block in blocks for item in self._outputs(block)})
        if len(inputs) > MOST_INPUTS or not 0 < len(outputs) <= MOST_OUTPUTS:
            return None
        used = [value for node in first.nodes for value in operands(node)]
        weights = self.constants.under(first.path, used)
        if weights and any(self.constants.is_weight(block.name) for block in blocks):
            return None
        function = BlockFunction(first, _title(first), inputs, outputs, weights, calls=len(blocks))
        lines = zip(
            *([node.metadata_props.get(SOURCE, "") for node in block.nodes] for block in blocks),
            strict=True,
        )
        function.several = {
            node for node, names in zip(first.nodes, lines, strict=True) if len(set(names)) > 1
        }
        function.items = self.resolved(first.items, first.path)
        return function

    def resolved(self, items: Sequence[Item], path: Path) -> list[Item]:
        """Replace blocks by calls, or by what is in them, and calls in a row by loops."""
        result: list[Item] = []
        for item in items:
            if not isinstance(item, ModuleBlock):
                result.append(item)
                continue
            inner = self._unwrapped(item)
            function = self.function(inner)
            if function is None:
                result += self.resolved(item.items, path)
            else:
                result.append(self._call(function, inner))
        return _with_loops(result, self.users)

    def _unwrapped(self, block: ModuleBlock) -> ModuleBlock:
        """Return the only block inside, where a module does nothing but call another."""
        while len(block.items) == 1 and isinstance(block.items[0], ModuleBlock):
            if self.keys.get(block.items[0]) is None:  # one of several pieces
                break
            block = block.items[0]
        return block

    def _call(self, function: BlockFunction, block: ModuleBlock) -> BlockCall:
        outputs = [block.nodes[node].outputs[index] for node, index in function.outputs]
        return BlockCall(function, block.path, self._inputs(block), outputs, block.nodes)


def _blocks(items: Iterable[Item]) -> Iterator[ModuleBlock]:
    for item in items:
        if isinstance(item, ModuleBlock):
            yield item
            yield from _blocks(item.items)


def _users(nodes: Iterable[ir.Node], outputs: set[ir.Value]) -> _Users:
    """Return the nodes that use each value, in their branches too; None stands for an output."""
    users: _Users = defaultdict(list)
    for node in nodes:
        for value in operands(node):
            users[value].append(node)
    for value in outputs:
        users[value].append(None)
    return users


def _title(block: ModuleBlock) -> str:
    """Return the class of a block's own nodes, or the name of its module."""
    depth = len(block.path)
    for node in block.nodes:
        scope = components(node.metadata_props.get(SCOPE, ""))
        if len(scope) == depth and node.metadata_props.get(CLASS):
            return node.metadata_props[CLASS]
    return singular(block.path[-1])


# -------------------------------------------------------------------- loops
def _with_loops(items: list[Item], users: _Users) -> list[Item]:
    result: list[Item] = []
    position = 0
    while position < len(items):
        loop = _loop_at(items, position, users)
        if loop is None:
            result.append(items[position])
            position += 1
        else:
            result.append(loop)
            position += len(loop.calls)
    return result


def _loop_at(items: list[Item], start: int, users: _Users) -> Loop | None:
    """Return the longest loop that begins at an item; None unless at least two calls repeat."""
    first = items[start]
    if not isinstance(first, BlockCall):
        return None
    calls, carried = [first], None
    for position in range(start + 1, len(items)):
        before, item = calls[-1], items[position]
        if not isinstance(item, BlockCall) or not _follows(item, before):
            break
        carried = _carried(first, item) if carried is None else carried
        if carried is None or not _continues(item, before, first, carried):
            break
        if _is_shown(before, item, users):  # in a loop, the results have no names
            break
        calls.append(item)
    return Loop(calls, carried) if carried is not None and len(calls) > 1 else None


def _follows(call: BlockCall, before: BlockCall) -> bool:
    """Return whether a call is that of the next module of a list."""
    *parents, last = call.path
    *others, previous = before.path
    name, _, index = last.partition(".")
    other, _, number = previous.partition(".")
    same = call.function is before.function and parents == others and name == other
    return same and bool(index and number) and int(index) == int(number) + 1


def _carried(first: BlockCall, second: BlockCall) -> dict[int, int] | None:
    """Map inputs to the outputs of the previous call, or return None if there is no pattern."""
    carried: dict[int, int] = {}
    for position, value in enumerate(second.inputs):
        if value in first.outputs:
            carried[position] = first.outputs.index(value)
    if len(set(carried.values())) != len(carried):  # two variables for one output
        return None
    started = [first.inputs[position] for position in carried]
    constant = [v for i, v in enumerate(first.inputs) if i not in carried]
    if len(set(started)) != len(started) or set(started) & set(constant):
        return None
    return carried


def _continues(
    call: BlockCall, before: BlockCall, first: BlockCall, carried: dict[int, int]
) -> bool:
    return all(
        value is (before.outputs[carried[position]] if position in carried else constant)
        for position, (value, constant) in enumerate(zip(call.inputs, first.inputs, strict=True))
    )


def _is_shown(call: BlockCall, after: BlockCall, users: _Users) -> bool:
    """Return whether the results of a call are used outside of it and the next call."""
    near = {*call.nodes, *after.nodes}
    return any(user not in near for value in call.outputs for user in users[value])
