"""Names for values, from the user's code and modules; and where nodes come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby

import onnx_ir as ir

from coreai_onnx.model.provenance.debug_info import SCOPE, SOURCE
from coreai_onnx.model.python.blocks import BlockCall, BlockFunction, Item, components, singular
from coreai_onnx.model.python.identifiers import LONGEST, identifier, is_plain, stem

# A name, perhaps its type, perhaps the operator of an assignment such as +=, and one =.
_TARGET = re.compile(r"([A-Za-z_]\w*)\s*(?::[^=]*)?(?:[-+*/@%&|^]|//|\*\*|<<|>>)?=(?!=)")


class Hints:
    """What is known of the user's code.

    Attributes:
        results: Names that values have as outputs of the function.
        several: Nodes of functions that are called for modules on different lines.
        local_names: Names that values have where they are made, in the function of a module.
        returned: Names of what functions of modules return, by position.
    """

    def __init__(self, codes: Mapping[str, str], graph: ir.Graph) -> None:
        """Find the nodes that end a line of the user's code.

        Args:
            codes: Text of source lines, ``moe.py:41`` to ``out = self.gate(x)``.
            graph: The graph.
        """
        lines = groupby(graph, lambda node: node.metadata_props.get(SOURCE, ""))
        # Only the last node of a line computes what the line assigns.
        self._ends = {list(nodes)[-1] for source, nodes in lines if source}
        self._codes = codes
        self.results: dict[ir.Value, str] = {}
        self.several: set[ir.Node] = set()
        self.local_names: dict[ir.Value, str] = {}
        self.returned: dict[BlockFunction, list[str]] = {}

    def source(self, item: Item) -> str:
        """Return the line that an item comes from; empty if there are several."""
        if isinstance(item, ir.Node):
            return item.metadata_props.get(SOURCE, "")
        nodes = item.nodes if isinstance(item, BlockCall) else []
        sources = {node.metadata_props.get(SOURCE, "") for node in nodes}
        return sources.pop() if len(sources) == 1 else ""

    def shown_source(self, item: Item) -> str:
        """Return the line that a comment names; empty if an item stands for several."""
        nodes = item.nodes if isinstance(item, BlockCall) else [item]
        return "" if any(node in self.several for node in nodes) else self.source(item)

    def code(self, source: str) -> str:
        """Return the text of a line; empty if it is unknown."""
        return self._codes.get(source, "").strip()

    def stem(self, value: ir.Value, path: tuple[str, ...] = ()) -> str:
        """Return a name for a value wherever it is used.

        Args:
            value: The value.
            path: The module that uses it.
        """
        if value in self.local_names:
            return self.local_names[value]
        node = value.producer()
        if node is None:
            name = value.name or "value"
            return name if is_plain(name) else stem(name)
        return (
            self.assigned(node)
            or self._module(node, path)
            or stem(value.name or node.op_type, node.op_type)
        )

    def variable(self, item: Item, value: ir.Value, path: tuple[str, ...]) -> str:
        """Return a name for a value where it is made: of a module, an operator, or its own."""
        if isinstance(item, BlockCall):
            if len(item.outputs) > 1:
                names = self.returned.get(item.function, [])
                place = item.outputs.index(value)
                return (names[place] if names else "") or self.stem(value, path)
            return identifier(singular(item.path[-1]))
        assert isinstance(item, ir.Node)
        if value.index():
            return stem(value.name or item.op_type)
        return self._module(item, path) or stem(value.name or item.op_type, item.op_type)

    def assigned(self, item: Item) -> str:
        """Return the name that the user assigns the last value of a line to, or an empty string."""
        last = item.nodes[-1] if isinstance(item, BlockCall) else item
        target = _TARGET.match(self.code(self.source(item))) if last in self._ends else None
        if target is None or target[1].startswith("__") or target[1] == "_":
            return ""
        is_usual = is_plain(target[1]) and target[1].islower() and len(target[1]) <= LONGEST
        return target[1] if is_usual else identifier(target[1])

    def _module(self, node: ir.Node, path: tuple[str, ...]) -> str:
        """Return the name of the module that a node comes from, unless it contains ``path``."""
        scope = components(node.metadata_props.get(SCOPE, ""))
        return "" if scope == path[: len(scope)] else identifier(singular(scope[-1]))
