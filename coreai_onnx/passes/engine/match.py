"""Building blocks of patterns.

Accessors for the dtype, shape, value and attributes of tensors and nodes, and matchers for the
producer of a tensor, the scalar side of a product, the calls of a composite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.engine import graphs as gs

Dim = int | str | None
STANDARD_DOMAINS = (None, "", "ai.onnx")


def is_standard(node: gs.Operation, *ops: str) -> bool:
    """Whether a node is of the standard ONNX domain and its op is one of ``ops``."""
    return node.op in ops and node.domain in STANDARD_DOMAINS


def dtype_of(tensor: gs.Tensor) -> np.dtype | None:
    """Return the element dtype, or None if it is unknown."""
    # graph-surgeon also accepts types such as np.float32, which do not equal a dtype in a set.
    return None if tensor.dtype is None else np.dtype(tensor.dtype)


def shape_of(tensor: gs.Tensor) -> tuple[Dim, ...] | None:
    """Return the shape: ints, names of dims, None for unknown dims; None if the rank is unknown."""
    # A sequence has the shape of its elements, which says nothing about itself.
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


def broadcast_shape(shapes: Sequence[tuple[Dim, ...] | None]) -> tuple[Dim, ...] | None:
    """Return the shape that shapes broadcast to; equal names are equal dims."""
    present = [shape for shape in shapes if shape is not None]
    if len(present) < len(shapes):
        return None
    rank = max(len(shape) for shape in present)
    result: list[Dim] = []
    for axis in range(rank):
        dims = {shape[axis - rank + len(shape)] for shape in present if axis >= rank - len(shape)}
        wide = dims - {1}
        # Two names may be different sizes at run time, one of them 1.
        if None in wide or len(wide) > 1:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def constant_of(tensor: gs.Tensor, *, at_most: int | None = None) -> np.ndarray | None:
    """Return a constant's values, or None for a variable or more than ``at_most`` elements."""
    if not isinstance(tensor, gs.AnyConstant):
        return None
    if at_most is not None and int(np.prod(tensor.shape, dtype=np.int64)) > at_most:
        return None
    return np.asarray(tensor.values)


def ints_of(tensor: gs.Tensor) -> list[int] | None:
    """Return a small integer constant as a flat list (axes, shapes, perms)."""
    values = constant_of(tensor, at_most=4096)  # axes and shapes, not the indices of an embedding
    if values is None or values.dtype.kind not in "iu":
        return None
    return [int(value) for value in values.ravel()]


def input_of(node: gs.Operation, index: int) -> gs.Tensor | None:
    """Return an input, or None if it is absent."""
    if index >= len(node.inputs) or node.inputs[index].is_empty():
        return None
    return node.inputs[index]


def attribute_of(node: gs.Operation, name: str, default: Any) -> Any:
    """Return an attribute's value.

    A reference to a function's attribute has no value here: callers get the ``AttributeRef``. It
    does not equal any int or list, so a pass that compares values does not fire.
    """
    return node.attrs.get(name, default)


def maker(tensor: gs.Tensor) -> gs.Node | None:
    """Return the node that produces a tensor; None for inputs and constants."""
    # Two producers are an error of a user's pass, which the check after the pass reports.
    if isinstance(tensor, gs.AnyConstant) or tensor.is_empty() or len(tensor.inputs) != 1:
        return None
    return tensor.inputs[0]


VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
"""Ops that change the shape and keep the order of elements."""


def behind(tensor: gs.Tensor, *ops: str) -> gs.Tensor:
    """Return the tensor before any of these standard ops, each of which reads it first."""
    while (node := made_by(tensor, *ops)) is not None:
        tensor = node.inputs[0]
    return tensor


def behind_views(tensor: gs.Tensor) -> gs.Tensor:
    """Return the tensor before any ops that change the shape and keep the order of elements."""
    return behind(tensor, *VIEWS)


def may_train(node: gs.Operation) -> bool:
    """Whether a Dropout is, or may be, in training mode; the default is inference."""
    mode = input_of(node, 2)
    training = None if mode is None else constant_of(mode, at_most=1)
    return mode is not None and (training is None or bool(training.any()))


def made_by(tensor: gs.Tensor, *ops: str) -> gs.Node | None:
    """Return the producer if its op is one of these standard ops and this is its first output."""
    node = maker(tensor)
    # The other outputs are other values: the mask of a Dropout, the indices of a TopK.
    if node is None or not is_standard(node, *ops) or node.outputs[0] is not tensor:
        return None
    return node


def composite(node: gs.Node | None, *names: str) -> str | None:
    """Return the variant suffix (``""`` for the plain name) if a node calls one of the composites.

    ``ai.coreai::rms_norm.wide_scale`` is the composite ``rms_norm`` in its variant ``wide_scale``.
    """
    if node is None or node.domain != STANDARD_DOMAIN:
        return None
    name, _, suffix = node.op.partition(".")
    return suffix if name in names else None


def scalar_of(tensor: gs.Tensor, like: gs.Tensor | None = None) -> float | None:
    """Return the value of a constant of one element.

    Args:
        tensor: The tensor.
        like: A tensor that the constant is combined with. A constant of more axes gives them to the
            result, so it is not the scalar that a pattern needs.
    """
    values = constant_of(tensor, at_most=1)
    if values is None or values.size != 1 or values.dtype.kind == "O":
        return None
    if like is not None and values.ndim > (rank_of(like) or 0):
        return None
    return float(np.asarray(values, dtype=np.float64).reshape(()))


def scaled(node: gs.Operation, like: gs.Tensor | None = None) -> tuple[gs.Tensor, float] | None:
    """Return the tensor and the constant scalar of a commutative node with two inputs.

    Args:
        node: The node.
        like: A tensor with as many axes as the one that is returned, if its own are unknown.
    """
    if len(node.inputs) != 2:
        return None
    for tensor, other in (node.inputs, node.inputs[::-1]):
        value = scalar_of(other, tensor if like is None else like)
        if value is not None and not isinstance(tensor, gs.AnyConstant):
            return tensor, value
    return None


def axes_of(node: gs.Operation, index: int = 1) -> list[int] | None:
    """Return the axes of a node, from an input (opset 13 and later) or an attribute."""
    tensor = input_of(node, index)
    if tensor is not None:
        return ints_of(tensor)
    axes = attribute_of(node, "axes", None)
    return list(axes) if isinstance(axes, list | tuple) else None


def rank_of(tensor: gs.Tensor) -> int | None:
    """Return the number of dims, if known."""
    return None if tensor.shape is None else len(tensor.shape)


def cast_to(node: gs.Operation | None) -> int | None:
    """Return the ONNX dtype that a ``Cast`` casts to; None if the node is not a ``Cast``."""
    to = attribute_of(node, "to", None) if node is not None and is_standard(node, "Cast") else None
    return to if isinstance(to, int) else None
