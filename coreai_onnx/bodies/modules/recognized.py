"""Recognizes externalized modules that are standard composites."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import onnx_ir as ir
import sympy
import torch

from coreai_onnx.bodies.modules.functions import composite_attributes
from coreai_onnx.bodies.modules.probe import probe_difference
from coreai_onnx.composites.declaration import Attribute, Composite, Input
from coreai_onnx.errors import ExternalizationError
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.lower.nodes.attention_call import call_of_module
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_checks import CompositeCallError
from coreai_onnx.lower.nodes.values import Value, dtype_of


class _Differs(Exception):  # noqa: N818 - control flow, not an error
    """The module is not the composite; the message says why."""


@dataclass(frozen=True)
class _Match:
    """The mapping of a call onto a composite.

    Attributes:
        sources: For each input that is present, ``("argument", name)`` or ``("weight", name)``.
        attributes: Attributes under the composite's names.
    """

    sources: Mapping[str, tuple[str, str]]
    attributes: Mapping[str, Any]


def call_as_composite(
    op: OpBuilder,
    call: ModuleCall,
    operands: tuple[Sequence[Value], Sequence[Any]],
    examples: tuple[Sequence[torch.Tensor], Sequence[Any]],
    weight: Callable[[str], Value],
    proven: dict[Any, _Match | _Differs],
) -> list[Value] | None:
    """Call a standard or declared composite, if the module is equivalent to it.

    A module of this package is. A user's class is equivalent if its arguments and weights are the
    composite's inputs, by name or declared alias, and it returns the same results as the reference.
    Otherwise a warning names the difference, and the module keeps its own function, for which there
    is no kernel.

    Args:
        op: Creates nodes at the call site.
        call: The call.
        operands: Tensors and numbers of the call.
        examples: Their counterparts in the exported program.
        weight: Returns the value of a weight of the module.
        proven: Caches the result of the check, for equal calls.

    Returns:
        The outputs; None if the module is not the composite.
    """
    composite = call.spec.declaration
    assert composite is not None, "the caller handles modules without a declaration"
    # For its errors: the attributes that the spec names must exist even if they are not used.
    composite_attributes(call)
    arguments = call.arguments(*operands)
    try:
        match = _match(composite, call, arguments)
        if not call.is_reference:
            match = _proven_once(composite, call, match, examples, proven)
    except _Differs as difference:
        _keep_own(call, composite, difference)
        return None
    inputs: list[Value | None] = []
    for declared in composite.inputs:
        kind, name = match.sources.get(declared.name, ("", ""))
        source = weight(name) if kind == "weight" else arguments.get(name)
        inputs.append(_as_value(op, declared, source))
    try:
        return call_of_module(op, composite, inputs, match.attributes)
    except CompositeCallError as refusal:
        if call.is_reference:
            raise
        _keep_own(call, composite, refusal)
        return None


def _keep_own(call: ModuleCall, composite: Composite, reason: Exception) -> None:
    """Warn that a module is not the composite, if it can be its own function instead.

    Raises:
        ExternalizationError: If it cannot, or if the user declared the composite: its kernel would
            run the function of that name.
    """
    if call.spec.composite is not None:
        raise ExternalizationError(
            f"{call.path or '(root)'} ({type(call.module).__name__}) is not the composite "
            f"{composite.name}: {reason}",
            advice="correct the reference of the declaration or the module, or externalize the "
            "module under another name",
        ) from reason
    # Modules that compute a reference are exported without a body.
    if call.leader.body is None:
        raise ExternalizationError(
            f"{call.path or '(root)'} ({type(call.module).__name__}) is called in a way that "
            f"the composite {composite.name} does not support: {reason}"
        ) from reason
    first = str(reason).partition("\n")[0].removeprefix(f"{composite.name}: ")
    warnings.warn(
        f"{call.path} ({type(call.module).__name__}) is not the composite {composite.name}: "
        f"{first}; it stays in ai.coreai.user",
        UserWarning,
        stacklevel=3,
    )


# ---------------------------------------------------------------------- by name
def _match(composite: Composite, call: ModuleCall, arguments: Mapping[str, Any]) -> _Match:
    """Map arguments, weights and attributes onto the composite, by their names.

    Raises:
        _Differs: If an argument has no counterpart, a required input is missing, or the results
            differ from those of the composite in kind or number.
    """
    returned = call.leader.out_leaves
    if list(returned) != ["tensor"] * len(composite.outputs):
        raise _Differs(f"it returns {len(returned)} values, not {len(composite.outputs)}")
    if call.leader.changed:
        raise _Differs(f"it changes {', '.join(call.leader.changed)} in place")
    sources: dict[str, tuple[str, str]] = {}
    attributes = _attributes(composite, call.module)
    for name, value in arguments.items():
        if value is None:
            continue
        declared = _named(composite.inputs, name)
        if declared is not None and declared.name not in sources and _fits(declared, value):
            sources[declared.name] = ("argument", name)
            continue
        attribute = _named(composite.attributes, name)
        if attribute is None or not isinstance(value, int | float | str):
            raise _Differs(f"its argument {name} is not an input of it")
        attributes[attribute.name] = _typed(attribute, value)
    for declared in composite.inputs:
        if declared.name not in sources:
            path = _weight_name(declared, call.module)
            if path:
                sources[declared.name] = ("weight", path)
            elif not declared.optional:
                raise _Differs(f"it has no {declared.name}")
    return _Match(sources, attributes)


def _named(declared: Sequence[Any], name: str) -> Any:
    return next((d for d in declared if name in (d.name, *d.aliases)), None)


def _fits(declared: Input, value: Any) -> bool:
    """Whether a tensor or, for an index, a number can be this input."""
    if isinstance(value, ir.Value):
        return True
    return declared.dtype == "index" and isinstance(value, int | sympy.Expr)


def _weight_name(declared: Input, module: torch.nn.Module) -> str:
    """Return the name of the parameter or buffer that is this input; empty if there is none."""
    weights = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
    names = (declared.name, *declared.aliases)
    return next((n for n in names if weights.get(n) is not None), "")


def _attributes(composite: Composite, module: torch.nn.Module) -> dict[str, Any]:
    """Return the composite's attributes, read from the module by name or alias."""
    attributes: dict[str, Any] = {}
    for attribute in composite.attributes:
        for name in (attribute.name, *attribute.aliases):
            value = _typed(attribute, getattr(module, name, None))
            if value is not None:
                attributes[attribute.name] = value
                break
    return attributes


def _typed(attribute: Attribute, value: Any) -> Any:
    """Return a value in the attribute's type; None if it cannot be converted."""
    if isinstance(value, Enum):
        value = value.value
    if attribute.type == "ints":
        # Modules may name a single axis by a number.
        items = [value] if isinstance(value, int) else value
        all_ints = isinstance(items, list | tuple) and all(isinstance(i, int) for i in items)
        return [int(i) for i in items] if all_ints else None
    if attribute.type == "string":
        return value if isinstance(value, str) else None
    if not isinstance(value, int | float):
        return None
    return int(value) if attribute.type == "int" else float(value)


# ---------------------------------------------------------------------- by numbers
def _proven_once(
    composite: Composite,
    call: ModuleCall,
    match: _Match,
    examples: tuple[Sequence[torch.Tensor], Sequence[Any]],
    results: dict[Any, _Match | _Differs],
) -> _Match:
    """Return or raise the cached result of :func:`_proven` for an equal call and match."""
    key = (call.leader.tag, repr(sorted(match.sources.items())), repr(match.attributes))
    if key not in results:
        try:
            results[key] = _proven(composite, call, match, examples)
        except _Differs as difference:
            results[key] = difference
    result = results[key]
    if isinstance(result, _Differs):
        # A new exception, because the cached one would collect tracebacks.
        raise _Differs(str(result))
    return result


def _proven(
    composite: Composite,
    call: ModuleCall,
    match: _Match,
    examples: tuple[Sequence[torch.Tensor], Sequence[Any]],
) -> _Match:
    """Return the match with the attributes under which module and reference agree.

    Raises:
        _Differs: If they never do.
    """
    difference = ""
    for attributes in composite.candidates(match.attributes):
        fault = probe_difference(composite, call, match.sources, attributes, examples)
        if not fault:
            return _Match(match.sources, attributes)
        # The first candidate has the attributes of the module itself.
        difference = difference or fault
    raise _Differs(difference)


# ---------------------------------------------------------------------- the node
def _as_value(op: OpBuilder, declared: Input, argument: Any) -> Value | None:
    """Return an argument as a value; integer indices are cast to int64."""
    if argument is None:
        return None
    if not isinstance(argument, ir.Value):
        is_number = not isinstance(argument, sympy.Basic)
        return op.const(int(argument)) if is_number else op.dim(sympy.sympify(argument))
    taken = declared.dtype != "index" or dtype_of(argument) in (torch.int32, torch.int64)
    return argument if taken else op.cast(argument, torch.int64)
