"""Names for values, from the user's code and modules; and where nodes come from."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

from coreai_onnx.model.debug_info import SCOPE, SOURCE
from coreai_onnx.source.blocks import Item, ModuleCall, components
from coreai_onnx.source.identifiers import identifier, is_plain, stem

_TARGET = re.compile(r"([A-Za-z_]\w*)\s*(?::[^=]*)?(?:[-+*/@%&|^]|//|\*\*|<<|>>)?=(?!=)")


class Hints:
    """What is known of the user's code.

    Attributes:
        results: Names that values have as outputs of the function.
    """

    def __init__(self, codes: Mapping[str, str]) -> None:
        """Take the text of source lines: ``moe.py:41`` to ``out = self.gate(x)``."""
        self._codes = codes
        self.results: dict[ir.Value, str] = {}

    def source(self, item: Item) -> str:
        """Return the line that an item comes from; empty for calls of modules."""
        return item.metadata_props.get(SOURCE, "") if isinstance(item, ir.Node) else ""

    def code(self, source: str) -> str:
        """Return the text of a line; empty if it is unknown."""
        return self._codes.get(source, "").strip()

    def stem(self, value: ir.Value) -> str:
        """Return a name for a value wherever it is used."""
        node = value.producer()
        if node is None:
            name = value.name or "value"
            return name if is_plain(name) else stem(name)
        return self._assigned(node) or self._module(node, ()) or stem(value.name or node.op_type)

    def variable(
        self, item: Item, value: ir.Value, following: Item | None, path: tuple[str, ...]
    ) -> str:
        """Return a name for a value where it is assigned.

        The last value that a line makes has the name that the user assigns it to.
        """
        if isinstance(item, ModuleCall):
            name = item.path[-1].partition(".")[0]
            return identifier(name) if value is item.outputs[0] else self.stem(value)
        assert isinstance(item, ir.Node)
        ends_line = following is None or self.source(following) != self.source(item)
        assigned = self._assigned(item) if ends_line else ""
        return assigned or self._module(item, path) or stem(value.name or item.op_type)

    def _assigned(self, node: ir.Node) -> str:
        found = _TARGET.match(self.code(self.source(node)))
        if found is None or found[1].startswith("__") or found[1] == "_":
            return ""
        return identifier(found[1]) if found[1] != found[1].lower() else found[1]

    def _module(self, node: ir.Node, path: tuple[str, ...]) -> str:
        """Return the name of the module inside ``path`` that a node comes from."""
        scope = components(node.metadata_props.get(SCOPE, ""))
        if len(scope) <= len(path):
            return ""
        return identifier(scope[-1].partition(".")[0])
