"""The attribute values that a composite's body was written for, and the calls with other values.

A body reads some attributes of a call. The others are fixed: the body is the one for a causal
attention, or for two axes. A kernel reads all attributes from the call, so a call with another
value of a fixed attribute would have two meanings: one where functions run, one where kernels run.
The metadata of a body has its fixed attributes, and calls with other values are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN, all_nodes, op_name
from coreai_onnx.model.provenance.debug_info import SCOPE, SOURCE, restore

FIXED = "coreai.fixed_attributes"
"""Function metadata: the fixed attributes of a body, ``{"is_causal": 1, "window_size": ">0"}``. A
body reads a number that is ``>0`` or ``<=0`` from the call, but holds only for these numbers. An
attribute that is ``null`` is absent from calls."""
POSITIVE, NOT_POSITIVE = ">0", "<=0"


def sign(number: float) -> str:
    """Return ``>0`` or ``<=0``."""
    return POSITIVE if number > 0 else NOT_POSITIVE


def write_fixed(function: ir.Function, attributes: Mapping[str, Any]) -> None:
    """Keep the fixed attributes of a body in its metadata.

    Args:
        function: The body.
        attributes: Name to value, `sign`, or None for an absent attribute.
    """
    if attributes:
        function.metadata_props[FIXED] = json.dumps(dict(attributes), sort_keys=True)


def fixed_attributes_fault(model: ir.Model) -> str:
    """Return which call has another value of an attribute than its body, or an empty string.

    Only the calls of standard composites are checked, and only those whose body has the metadata.

    Args:
        model: The model; if a call is at fault, its nodes get their debug information.
    """
    fixed = {key: _fixed(f) for key, f in model.functions.items() if key[0] == STANDARD_DOMAIN}
    for node in all_nodes(model):
        key = node.op_identifier()
        if fixed.get(key) and (wrong := _fault(node, model.functions[key], fixed[key])):
            # The place that the message names may be in the table of debug information.
            restore(model)
            return f"{_place(node)} {wrong}\n  {_ADVICE}"
    return ""


_ADVICE = "kernels and the body would compute different results: convert the module with this value"


def _fixed(function: ir.Function) -> dict[str, Any]:
    try:
        entry = json.loads(function.metadata_props.get(FIXED, "{}"))
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _fault(node: ir.Node, function: ir.Function, attributes: Mapping[str, Any]) -> str:
    for name, expected in attributes.items():
        # A call without the attribute has the default of the function.
        attribute = node.attributes.get(name) or function.attributes.get(name)
        # Its value may differ from one call of the enclosing function to the next.
        if attribute is not None and attribute.is_ref():
            return f"has {name} of its caller, its body is for {_text(expected)}"
        value = None if attribute is None else attribute.value
        if not _fits(value, expected):
            return f"has {name} = {_text(value)}, its body is for {_text(expected)}"
    return ""


def _fits(value: Any, expected: Any) -> bool:
    if isinstance(value, int | float):
        if expected in (POSITIVE, NOT_POSITIVE):
            return bool(sign(value) == expected)
        if not isinstance(expected, int | float):
            return False
        # ONNX stores float32; the JSON of the metadata has the digits of float64.
        value, expected = (float(np.float32(number)) for number in (value, expected))
    if isinstance(value, list | tuple):
        value = list(value)
    same: bool = value == expected
    return same


def _text(value: Any) -> str:
    if value is None:
        return "no value"
    return str(list(value)) if isinstance(value, list | tuple) else str(value)


def _place(node: ir.Node) -> str:
    """Return the op, name, module and source line of a node."""
    module, line = (node.metadata_props.get(key, "") for key in (SCOPE, SOURCE))
    where = ", ".join(text for text in (module, line) if text)
    name = op_name(node.domain, node.op_type)
    return f"{name} node {node.name!r}" + (f" ({where})" if where else "")
