"""Which values are written inside the expression that uses them, instead of getting a name.

Python evaluates the arguments of a call from left to right and then the call, so an expression
keeps the order of the nodes if what it contains comes right before it, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from coreai_onnx.model.contents import attribute_graphs
from coreai_onnx.model.debug_info import SOURCE
from coreai_onnx.source.blocks import Block, Item, Loop, ModuleCall
from coreai_onnx.source.calls import Calls
from coreai_onnx.source.layout import flat
from coreai_onnx.source.structure import operands

DEEPEST = 4
"""Calls within calls that are still legible."""
LONGEST = 76
"""Characters of an expression; a name and an indentation come before it."""
_NAME = 12
"""Characters of an average name."""


def outputs_of(item: Item) -> list[ir.Value]:
    """Return what an item makes: of a loop, what the last call returns."""
    assert not isinstance(item, Block)
    return list(item.calls[-1].outputs if isinstance(item, Loop) else item.outputs)


def inputs_of(item: Item) -> list[ir.Value]:
    """Return what an item uses, in branches too."""
    if isinstance(item, Loop):
        return item.calls[0].inputs
    if isinstance(item, ModuleCall):
        return item.inputs
    assert isinstance(item, ir.Node)
    return list(operands(item))


def last_uses(items: Sequence[Item], results: Sequence[ir.Value]) -> dict[ir.Value, int]:
    """Return the position of the last item that uses each value; results are used at the end."""
    found = {value: at for at, item in enumerate(items) for value in inputs_of(item)}
    return found | dict.fromkeys(results, len(items))


def folded_values(
    items: Sequence[Item], results: Sequence[ir.Value], calls: Calls
) -> set[ir.Value]:
    """Return the values that have no name: used once, right after they are made, and legible."""
    uses = Counter(value for item in items for value in inputs_of(item))
    uses.update(results)
    folding = _Folding(calls)
    for item in items:
        if isinstance(item, ir.Node) and not _has_graphs(item):
            foldable = len(item.outputs) == 1 and uses[item.outputs[0]] == 1
            folding.add(item, can_wait=foldable and item.outputs[0] not in results)
        else:
            folding.waiting.clear()
    return folding.folded


class _Folding:
    """A stack of expressions that wait for the call that uses them."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.folded: set[ir.Value] = set()
        self.waiting: list[tuple[ir.Node, int, int]] = []

    def add(self, node: ir.Node, *, can_wait: bool) -> None:
        """Fold what waits into a node; let the node wait, or end all waiting."""
        depth, length = 1, self._length(node)
        inputs = [value for value in node.inputs if value is not None]
        expected = len(self.waiting)
        for value in reversed(inputs):
            if not expected or self.waiting[expected - 1][0].outputs[0] is not value:
                continue
            inner, deep, long = self.waiting[expected - 1]
            if not _belong(inner, node) or deep >= DEEPEST or length + long > LONGEST:
                break
            expected -= 1
            depth = max(depth, deep + 1)
            length += long - _NAME
            self.folded.add(value)
        del self.waiting[expected:]
        if can_wait:
            self.waiting.append((node, depth, length))
        else:
            self.waiting.clear()

    def _length(self, node: ir.Node) -> int:
        length = len(self.calls.head(node)) + 2
        for value in node.inputs:
            constant = self.calls.constants.of(value)
            if constant is None:
                length += _NAME + 2
            elif constant.text is None:
                length += len(constant.key.rpartition(".")[0].rpartition(".")[2]) + 15
            else:
                length += len(flat(constant.text)) + 2
        return length + sum(len(flat(k)) + 2 for k in self.calls.keywords(node, {}))


def _belong(inner: ir.Node, outer: ir.Node) -> bool:
    """Whether two nodes come from the same line of the user's code, or from no known line."""
    return inner.metadata_props.get(SOURCE, "") == outer.metadata_props.get(SOURCE, "")


def _has_graphs(node: ir.Node) -> bool:
    return any(attribute_graphs(attribute) for attribute in node.attributes.values())
