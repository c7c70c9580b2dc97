"""Calls of composites with the tensors of a module, whose ranks may differ from the declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coreai_onnx.composites import Composite
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Value

ModuleForm = Callable[[OpBuilder, Sequence[Value | None], Mapping[str, Any]], list[Value]]
"""Calls a composite on inputs of any rank, with attributes; returns its outputs."""
_FORMS: dict[str, ModuleForm] = {}


def calls_from_modules(composite: str) -> Callable[[ModuleForm], ModuleForm]:
    """Return a decorator that registers how modules call a composite.

    Args:
        composite: Its name.
    """

    def register(form: ModuleForm) -> ModuleForm:
        assert composite not in _FORMS, f"{composite} has a form already"
        _FORMS[composite] = form
        return form

    return register


def call_of_module(
    op: OpBuilder,
    composite: Composite,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
) -> list[Value]:
    """Call a composite with the inputs of a module that computes it; return its outputs.

    Args:
        op: Creates the nodes.
        composite: Its declaration.
        inputs: By position; None for absent ones.
        attributes: Its attributes.

    Raises:
        CompositeCallError: If the composite does not accept these inputs or attributes.
    """
    form = _FORMS.get(composite.name)
    if form is not None:
        return form(op, inputs, attributes)
    return op.composite_outputs(composite, inputs, **attributes)
