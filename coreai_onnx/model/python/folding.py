"""Which values are written inside the expression that uses them, instead of getting a name.

Python evaluates the arguments of a call from left to right and then the call, so an expression
keeps the order of the nodes if what it contains comes right before it, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import onnx_ir as ir

from coreai_onnx.model.python.blocks import BlockCall, Item, Loop, ModuleBlock
from coreai_onnx.model.python.hints import Hints
from coreai_onnx.model.python.layout import Expression, flat
from coreai_onnx.model.python.structure import operands
from coreai_onnx.model.standard.model_protos import subgraphs

DEEPEST = 4
"""Calls within calls that are still legible."""
LONGEST_OF_LINES = 60
"""Characters of an expression for two lines of the user's code."""
LONGEST = 78
"""Characters of an expression; a name and an indentation come before it."""


def outputs_of(item: Item) -> list[ir.Value]:
    """Return what an item makes: of a loop, what the last call returns."""
    assert not isinstance(item, ModuleBlock)
    return list(item.calls[-1].outputs if isinstance(item, Loop) else item.outputs)


def inputs_of(item: Item) -> list[ir.Value]:
    """Return what an item uses, in branches too."""
    if isinstance(item, Loop):
        return item.calls[0].inputs
    if isinstance(item, BlockCall):
        return item.inputs
    assert isinstance(item, ir.Node)
    return list(operands(item))


def last_uses(items: Sequence[Item], results: Sequence[ir.Value]) -> dict[ir.Value, int]:
    """Return the position of the last item that uses each value; results are used at the end."""
    uses = {value: at for at, item in enumerate(items) for value in inputs_of(item)}
    return uses | dict.fromkeys(results, len(items))


def folded_values(
    items: Sequence[Item],
    results: Sequence[ir.Value],
    expression: Callable[[Item], Expression],
    hints: Hints,
) -> set[ir.Value]:
    """Return the values that have no name: used once, right after they are made, and legible.

    Args:
        items: The items of a function.
        results: What it returns.
        expression: Returns an item as Python, in which values have names.
        hints: Where items come from.
    """
    uses = Counter(value for item in items for value in inputs_of(item))
    uses.update(results)
    returned = set(results)
    folding = _Folding(hints)
    for item in items:
        if isinstance(item, Loop) or (isinstance(item, ir.Node) and any(subgraphs(item))):
            folding.waiting.clear()
            continue
        outputs = outputs_of(item)
        can_wait = len(outputs) == 1 and uses[outputs[0]] == 1 and outputs[0] not in returned
        folding.add(item, flat(expression(item)), can_wait=can_wait)
    return folding.folded


class _Folding:
    """A stack of expressions that wait for the call that uses them."""

    def __init__(self, hints: Hints) -> None:
        self.hints = hints
        self.folded: set[ir.Value] = set()
        self.waiting: list[tuple[Item, int, int]] = []

    def add(self, item: Item, text: str, *, can_wait: bool) -> None:
        """Fold what waits into an item; let the item wait, or end all waiting."""
        depth, length = 1, len(text)
        expected = len(self.waiting)
        # The last argument was made last, so that it is at the top of the stack.
        for value in reversed(inputs_of(item)):
            if not expected or outputs_of(self.waiting[expected - 1][0])[0] is not value:
                continue
            inner, deep, long = self.waiting[expected - 1]
            # The expression takes the place of the name, which `text` already has.
            long -= len(self.hints.stem(value))
            # Of one line of the user's code, or of no known line.
            is_one_line = self.hints.source(inner) == self.hints.source(item)
            longest = LONGEST if is_one_line else LONGEST_OF_LINES
            if deep >= DEEPEST or length + long > longest:
                break
            expected -= 1
            depth = max(depth, deep + 1)
            length += long
            self.folded.add(value)
        del self.waiting[expected:]
        if can_wait:
            self.waiting.append((item, depth, length))
        else:
            self.waiting.clear()
