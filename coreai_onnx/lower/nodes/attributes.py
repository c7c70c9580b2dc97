"""Attributes of opaque nodes, from the arguments of torch operators."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from coreai_onnx.errors import LoweringError, Where
from coreai_onnx.lower.nodes.scope import AttributeRef
from coreai_onnx.lower.nodes.values import ir_dtype

_READY = (AttributeRef, ir.Attr, ir.TensorProtocol)


def onnx_attributes(
    op_name: str, attributes: Mapping[str, Any], where: Where | None
) -> dict[str, Any]:
    """Return attributes in a form that a node can store; those that are None are omitted.

    Bools become ints, dtypes the numbers of ONNX's dtypes, enums their values.

    Args:
        op_name: The operator, for the error.
        attributes: Bools, numbers, strings, lists of these, dtypes, tensors and arrays.
        where: The location in the user's model, for the error.

    Raises:
        LoweringError: If a value has no ONNX form: a symbolic size, or a list that is empty.
    """
    written = {}
    for name, value in attributes.items():
        if value is None:
            continue
        written[name] = _onnx_value(value)
        if written[name] is None:
            raise LoweringError(
                f"{op_name}: attribute {name!r} is {value!r}, which has no ONNX form",
                where,
                "bools, numbers, strings, lists of these that are not empty, dtypes and tensors "
                "can be attributes; a dynamic size can be an input: op.dim(size)",
            )
    return written


def plain_value(value: Any) -> int | float | str | list[Any] | None:
    """Return a bool, number, string, enum or list of them in ONNX form; None for anything else.

    Scalars of numpy are numbers; ONNX has no integers of more than 64 bits.
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, np.generic):
        value = value.item()
    # Before the test for int, of which bool is a subclass; ONNX has no Boolean attributes.
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    if isinstance(value, int | float | str):
        return value
    # An empty list does not show whether it is of integers, floats or strings.
    if not isinstance(value, list | tuple) or not value:
        return None
    value = [v.item() if isinstance(v, np.generic) else v for v in value]
    if all(isinstance(v, str) for v in value):
        return list(value)
    if not all(isinstance(v, int | float) for v in value):
        return None
    # A list in ONNX has one type, so one float makes all numbers floats.
    return [int(v) if all(isinstance(w, int) for w in value) else float(v) for v in value]


def _onnx_value(value: Any) -> Any:
    """Return a value in ONNX form; None if it has none."""
    if isinstance(value, _READY):
        return value
    if isinstance(value, torch.dtype):
        return int(ir_dtype(value))
    if isinstance(value, torch.Tensor):
        return ir.tensor(value.detach().contiguous().cpu())
    return ir.tensor(value) if isinstance(value, np.ndarray) else plain_value(value)
