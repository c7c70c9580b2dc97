"""Calls of standard composites, collected while a program is lowered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from coreai_onnx.composite_ops import COMPOSITES
from coreai_onnx.composite_ops.declaration import DOMAIN, Composite
from coreai_onnx.lower.values import Value, maybe_dims, set_dims

if TYPE_CHECKING:
    from coreai_onnx.lower.builder import OpBuilder


@dataclass(frozen=True)
class CompositeCall:
    """One call: the node, and what its body depends on."""

    composite: Composite
    node: ir.Node
    attributes: Mapping[str, Any]


@dataclass
class CompositeCalls:
    """The composite calls of one program, in order."""

    calls: list[CompositeCall] = field(default_factory=list)

    def call(
        self,
        op: OpBuilder,
        name: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
    ) -> list[Value]:
        """Append a call of a standard composite.

        Attributes are written with their defaults, so that the node says all that it means;
        attributes whose value is None are left out.

        Returns:
            The outputs; the first has the dtype and dims of the first input.
        """
        composite = COMPOSITES[name]
        given = {a.name: attributes.get(a.name, a.default) for a in composite.attributes}
        unknown = set(attributes) - set(given)
        if unknown:
            raise KeyError(f"composite {name} has no attribute {sorted(unknown)}")
        written = {k: v for k, v in given.items() if v is not None}
        written["version"] = composite.version
        outputs = op.call(DOMAIN, name, inputs, written, outputs=len(composite.outputs))
        node = outputs[0].producer()
        assert node is not None
        first = inputs[0]
        if first is not None and first.dtype is not None:
            outputs[0].dtype = first.dtype
            if (dims := maybe_dims(first)) is not None:
                set_dims(outputs[0], dims)
        self.calls.append(CompositeCall(composite, node, written))
        return outputs
