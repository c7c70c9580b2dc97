"""Calls of composites, collected while a program is lowered."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from coreai_onnx.composites import Composite, domain_of
from coreai_onnx.composites.declaration import FLOAT_DTYPES, USER_DOMAIN
from coreai_onnx.composites.user_composites import check_declaration
from coreai_onnx.errors import DeclarationError
from coreai_onnx.lower.nodes.composite_checks import checked
from coreai_onnx.lower.nodes.node_builder import NodeBuilder
from coreai_onnx.lower.nodes.values import (
    Value,
    dims_of,
    dtype_of,
    is_complex,
    maybe_dims,
    set_dims,
)


def is_covered(*values: Value | None) -> bool:
    """Whether composites support these values: real floating-point tensors that are not empty."""
    return all(x is None or (_is_real_float(x) and 0 not in dims_of(x)) for x in values)


def _is_real_float(x: Value) -> bool:
    return not is_complex(x) and str(dtype_of(x)).removeprefix("torch.") in FLOAT_DTYPES


@dataclass(frozen=True)
class CompositeCall:
    """One call: the node, and the properties on which its body depends."""

    composite: Composite
    node: ir.Node
    attributes: Mapping[str, Any]


@dataclass
class CompositeCalls:
    """The composite calls of one program, in order."""

    calls: list[CompositeCall] = field(default_factory=list)

    def call(
        self,
        op: NodeBuilder,
        composite: Composite,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
    ) -> list[Value]:
        """Append a call of a composite.

        Attributes are written with their defaults, so that the node is self-contained; attributes
        whose value is None are omitted.

        Returns:
            The outputs, with dtypes, and with dims if the declaration gives them.

        Raises:
            CompositeCallError: If the composite does not accept these inputs or attributes.
            DeclarationError: If another composite of the same name is called as well.
        """
        domain = self._domain(composite)
        written = checked(composite, inputs, attributes, op.scope.where)
        inputs = _used(composite, inputs)
        outputs = op.call(domain, composite.name, inputs, written, outputs=len(composite.outputs))
        # The body is made after the program is lowered, from the dims of the values of this node.
        node = outputs[0].producer()
        assert node is not None
        self._describe(composite, inputs, outputs)
        self.calls.append(CompositeCall(composite, node, written))
        return outputs

    def _domain(self, composite: Composite) -> str:
        """Return the domain of a composite; a user's composite is checked first."""
        domain = domain_of(composite)
        if domain == USER_DOMAIN:
            check_declaration(composite)
            names = (call.composite for call in self.calls if call.composite.name == composite.name)
            # A model has one function for a domain and a name.
            if any(other is not composite for other in names):
                raise DeclarationError(
                    f"the model calls two composites called {composite.name}; rename one of them"
                )
        return domain

    @staticmethod
    def _describe(
        composite: Composite, inputs: Sequence[Value | None], outputs: Sequence[Value]
    ) -> None:
        """Set the dtypes of outputs, and the dims that follow from the inputs."""
        first = inputs[0]
        assert first is not None
        by_name = {d.name: x for d, x in zip(composite.inputs, inputs, strict=False)}
        shapes = composite.output_shapes([None if x is None else maybe_dims(x) for x in inputs])
        for output, dims, like in itertools.zip_longest(outputs, shapes, composite.output_likes):
            output.dtype = (by_name.get(like) or first).dtype
            if dims is not None:
                set_dims(output, dims)


def _used(composite: Composite, inputs: Sequence[Value | None]) -> list[Value | None]:
    """Return the inputs, with None for an input without effect."""
    names = [declared.name for declared in composite.inputs[: len(inputs)]]
    passed = {name for name, x in zip(names, inputs, strict=True) if x is not None}
    # Otherwise the nodes that compute it could not be removed.
    unused = composite.unused(passed)
    return [None if name in unused else x for name, x in zip(names, inputs, strict=True)]
