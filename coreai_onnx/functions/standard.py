"""Externalised modules that are standard composites."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch.utils import _pytree as pytree

from coreai_onnx.composite_ops import COMPOSITES, SDPA, RMSNormImpl, RoPE
from coreai_onnx.composite_ops.declaration import Attribute, Composite
from coreai_onnx.export.externalize import ModuleCall
from coreai_onnx.functions.probe import probe_difference
from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.values import Value

_OWN = (RMSNormImpl, RoPE, SDPA)


def call_standard(op: OpBuilder, call: ModuleCall, tensors: Sequence[Value]) -> list[Value] | None:
    """Call a standard composite, if the module means the same.

    A module of this package does. A user's class does if its forward has the composite's inputs
    and gives what the reference gives; otherwise a warning says what differs, and the module
    stays under its own name where no kernel takes it over.
    """
    composite = COMPOSITES[str(call.spec.composite_op_name)]
    arguments = call.arguments(list(tensors), [])
    inputs = _inputs(composite, arguments)
    attributes = _attributes(composite, call.module)
    difference = "" if isinstance(call.module, _OWN) else _difference(composite, call, inputs)
    if not difference and not isinstance(call.module, _OWN):
        difference = probe_difference(composite, call, attributes)
    if difference or inputs is None:
        warnings.warn(
            f"{call.path} ({type(call.module).__name__}) is not the composite {composite.name}: "
            f"{difference}; it stays in ai.coreai.user",
            UserWarning,
            stacklevel=2,
        )
        return None
    if attributes.get("is_causal") is not None and inputs[3:4] not in ([], [None]):
        attributes |= {"is_causal": 0, "window_size": 0}
    if composite.name == "scaled_dot_product_attention" and attributes.get("scale") is None:
        attributes["scale"] = _default_scale(inputs[0])
    return [op.composite(composite.name, inputs, **attributes)]


def _inputs(composite: Composite, arguments: Mapping[str, Any]) -> list[Any] | None:
    """Return the composite's inputs by parameter name; None if an argument fits no input."""
    names = [i.name for i in composite.inputs]
    if not set(arguments) <= set(names):
        return None
    return [arguments.get(n) for n in names]


def _difference(composite: Composite, call: ModuleCall, inputs: list[Any] | None) -> str:
    """Say how a user's forward differs from the composite's signature; empty if it does not."""
    given = list(inspect.signature(type(call.module).forward).parameters)[1:]
    if inputs is None:
        return f"its forward takes ({', '.join(given)})"
    leaves = pytree.tree_leaves(call.out_leaves)
    if leaves != ["tensor"] * len(composite.outputs):
        return f"it returns {len(leaves)} values, not {len(composite.outputs)}"
    return ""


def _attributes(composite: Composite, module: torch.nn.Module) -> dict[str, Any]:
    """Return the composite's attributes as the module has them, under its names or aliases."""
    found: dict[str, Any] = {}
    for attribute in composite.attributes:
        for name in (attribute.name, *attribute.aliases):
            value = getattr(module, name, None)
            if value is not None and not isinstance(value, torch.Tensor | torch.nn.Module):
                found[attribute.name] = _typed(attribute, value)
                break
    return found


def _typed(attribute: Attribute, value: Any) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if attribute.type == "ints":
        return [value] if isinstance(value, int) else list(value)
    return {"int": int, "float": float, "string": str}.get(attribute.type, lambda v: v)(value)


def _default_scale(query: Value) -> float:
    head_dim = query.meta["dims"][-1]
    return float(int(head_dim) ** -0.5)
