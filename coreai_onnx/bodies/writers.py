"""The registry of body writers and of the variant names of composites.

```python
@writes("swiglu")
def swiglu(b: BodyBuilder) -> Value: ...
```
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import onnx_ir as ir

from coreai_onnx.bodies.body import BodyBuilder, Variant
from coreai_onnx.bodies.trace import Example
from coreai_onnx.composites.declaration import Composite
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.model.checks.fixed_attributes import sign, write_fixed

Examples = Sequence[Example | None]
"""The properties on which a body depends, one per declared input, None for an absent one."""
Writer = Callable[[BodyBuilder], Value | Sequence[Value]]
"""Writes a body; returns its outputs."""
Words = Callable[[Variant], list[str]]
"""Returns the words of a variant's name, at most one per group of the declaration."""
_W = TypeVar("_W", bound=Writer)


@dataclass(frozen=True)
class _Registered:
    write: Writer
    words: Words | None


_WRITERS: dict[str, _Registered] = {}


def writes(*composites: str, words: Words | None = None) -> Callable[[_W], _W]:
    """Return a decorator that registers a function as the writer of composites' bodies.

    Args:
        *composites: Names of the composites.
        words: Returns the variant words of a call; None if one body serves every call of a dtype.
    """

    def register(writer: _W) -> _W:
        for name in composites:
            assert name not in _WRITERS, f"{name} has a writer already"
            _WRITERS[name] = _Registered(writer, words)
        return writer

    return register


def write_body(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any], opset: int
) -> ir.Function | None:
    """Return the body of a composite, or None if its reference is traced.

    Args:
        composite: The declaration.
        examples: One per input, None for an absent one.
        attributes: Structural attributes.
        opset: ``ai.onnx`` opset of the body.
    """
    registered = _WRITERS.get(composite.name)
    if registered is None:
        return None

    builder = BodyBuilder(Variant(composite, examples, attributes), opset)
    builder.type_inputs()
    written = registered.write(builder)
    body = builder.finish([written] if isinstance(written, ir.Value) else written)
    write_fixed(body, _fixed(composite, attributes, read_attributes(body)))
    return body


def _fixed(
    composite: Composite, attributes: Mapping[str, Any], read: Collection[str]
) -> dict[str, Any]:
    """Return the attributes that a written body is fixed to.

    Args:
        composite: The declaration.
        attributes: The attributes that the body was written for.
        read: Names of the attributes that the body reads from its calls.
    """
    fixed = {}
    for attribute in composite.attributes:
        name = attribute.name
        if attribute.structural and name in attributes:
            if name not in read:
                fixed[name] = attributes[name]
            # The body reads the number, but holds only for its sign.
            elif attribute.switch:
                fixed[name] = sign(attributes[name])
    return fixed


def read_attributes(function: ir.Function) -> set[str]:
    """Return the names of the attributes that a body reads from its calls."""
    attributes = (a for node in function.all_nodes() for a in node.attributes.values())
    return {a.ref_attr_name for a in attributes if a.is_ref() and a.ref_attr_name}


def body_text(function: ir.Function) -> str:
    """Return the serialized body, which is equal for equal bodies."""
    serialized: bytes = ir.to_proto(function).SerializeToString()
    return serialized.hex()


def variant_words(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    """Return the variant words of a call, at most one per group of its declaration.

    Args:
        composite: The declaration.
        examples: One per input, None for an absent one.
        attributes: Every attribute of the call.
    """
    registered = _WRITERS.get(composite.name)
    if registered is None or registered.words is None:
        return []
    return registered.words(Variant(composite, examples, attributes))
