"""Checks of the declarations of users' composites."""

from __future__ import annotations

import inspect
import math
from collections import Counter

from coreai_onnx.composites.declaration import FLOAT_DTYPES, Composite
from coreai_onnx.errors import DeclarationError


def check_declaration(composite: Composite) -> None:
    """Check that the declaration of a composite is complete, and supported for users' composites.

    Raises:
        DeclarationError: If it is not.
    """
    wrong = (
        _wrong_name(composite)
        or _wrong_inputs(composite)
        or _wrong_attributes(composite)
        or _wrong_outputs(composite)
        or _wrong_reference(composite)
    )
    if wrong:
        raise DeclarationError(f"the declaration of the composite {composite.name!r}: {wrong}")


def _wrong_name(composite: Composite) -> str:
    if not (composite.name.isascii() and composite.name.isidentifier()):
        return "the name must consist of letters, digits and _"
    if not composite.formula:
        return "formula is empty; it becomes the documentation of the function"
    names = [x.name for x in composite.inputs] + [x.name for x in composite.attributes]
    counts = Counter([*names, "version"])
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        return f"{twice[0]!r} names two inputs or attributes (every composite has a version)"
    return ""


def _wrong_inputs(composite: Composite) -> str:
    if not composite.inputs:
        return "there is no input"
    first = composite.inputs[0]
    if first.dtype != "T" or first.optional:
        return f'the first input, {first.name}, must be required and of dtype "T"'
    if not composite.dtypes or set(composite.dtypes) - set(FLOAT_DTYPES):
        return f"dtypes is {composite.dtypes}; choose from {', '.join(FLOAT_DTYPES)}"
    return ""


def _wrong_attributes(composite: Composite) -> str:
    for attribute in composite.attributes:
        if attribute.type != "float" and not attribute.structural:
            return (
                f"the attribute {attribute.name} of type {attribute.type} must have "
                "structural=True: a body can read only floats from its node"
            )
        default = attribute.default
        # Declarations are keys of caches and must be hashable.
        if isinstance(default, list):
            return f"the default of the attribute {attribute.name} must be a tuple"
        if isinstance(default, float) and not math.isfinite(default):
            return f"the default of the attribute {attribute.name} is {default}, not a number"
    return ""


def _wrong_outputs(composite: Composite) -> str:
    if not composite.outputs:
        return "there is no output"
    if len(composite.output_dims) != len(composite.outputs):
        return (
            f"output_dims has {len(composite.output_dims)} entries for "
            f"{len(composite.outputs)} outputs"
        )
    dtypes = {declared.name: declared.dtype for declared in composite.inputs}
    for name in composite.output_likes:
        if name and dtypes.get(name) != "T":
            return f'output_likes names {name!r}, which is not an input of dtype "T"'
    return ""


def _wrong_reference(composite: Composite) -> str:
    attributes = {attribute.name: None for attribute in composite.attributes}
    try:
        signature = inspect.signature(composite.reference)
    except ValueError:  # functions of torch that are written in C have none
        return ""
    try:
        signature.bind(*composite.inputs, **attributes)
    except TypeError as error:
        return f"its reference cannot be called with its inputs and attributes: {error}"
    return ""
