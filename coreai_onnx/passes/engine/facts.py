"""Accessors for the dtype, shape, value and attributes of tensors and nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

Dim = int | str | None
STANDARD_DOMAINS = (None, "", "ai.onnx")


def is_standard(node: gs.Node, *ops: str) -> bool:
    """Whether a node is of the standard ONNX domain and its op is one of ``ops``."""
    return node.op in ops and node.domain in STANDARD_DOMAINS


def dtype_of(tensor: gs.Tensor) -> np.dtype | None:
    """Return the element dtype, or None if it is unknown."""
    return None if tensor.dtype is None else np.dtype(tensor.dtype)


def shape_of(tensor: gs.Tensor) -> tuple[Dim, ...] | None:
    """Return the shape: ints, names of dims, None for unknown dims; None if the rank is unknown."""
    if tensor.shape is None or getattr(tensor, "type", "tensor_type") != "tensor_type":
        return None
    return tuple(tensor.shape)


def static_shape_of(tensor: gs.Tensor) -> tuple[int, ...] | None:
    """Return the shape if every dim is a known int."""
    shape = shape_of(tensor)
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return tuple(int(dim) for dim in shape if isinstance(dim, int))


def same_known_shape(a: gs.Tensor, b: gs.Tensor) -> bool:
    """Whether both shapes are known and equal, dim by dim; equal names are equal dims."""
    first, second = shape_of(a), shape_of(b)
    return first is not None and first == second and None not in first


def constant_of(tensor: gs.Tensor, *, at_most: int | None = None) -> np.ndarray | None:
    """Return a constant's values, or None for a variable or more than ``at_most`` elements."""
    if not isinstance(tensor, gs.Constant):
        return None
    if at_most is not None and int(np.prod(tensor.shape, dtype=np.int64)) > at_most:
        return None
    return np.asarray(tensor.values)


def ints_of(tensor: gs.Tensor) -> list[int] | None:
    """Return a small integer constant as a flat list (axes, shapes, perms)."""
    values = constant_of(tensor, at_most=4096)
    if values is None or values.dtype.kind not in "iu":
        return None
    return [int(value) for value in values.ravel()]


def input_of(node: gs.Node, index: int) -> gs.Tensor | None:
    """Return an input, or None if it is absent."""
    if index >= len(node.inputs) or node.inputs[index].is_empty():
        return None
    return node.inputs[index]


def attribute_of(node: gs.Node, name: str, default: Any) -> Any:
    """Return an attribute's value.

    A reference to a function's attribute has no value here: callers get the ``AttributeRef``. It
    does not equal any int or list, so a pass that compares values does not fire.
    """
    return node.attrs.get(name, default)
