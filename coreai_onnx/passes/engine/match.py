"""Building blocks of patterns, such as the producer of a tensor or the scalar side of a product."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.facts import (
    attribute_of,
    constant_of,
    input_of,
    ints_of,
    is_standard,
)

DOMAIN = "ai.coreai"
"""Domain of the standard composites."""
CONTRIB_DOMAIN = "com.microsoft"
"""Domain of onnxruntime's contrib ops."""


def maker(tensor: gs.Tensor) -> gs.Node | None:
    """Return the node that produces a tensor; None for inputs and constants."""
    if isinstance(tensor, gs.Constant) or tensor.is_empty() or len(tensor.inputs) != 1:
        return None
    return tensor.inputs[0]


def made_by(tensor: gs.Tensor, *ops: str) -> gs.Node | None:
    """Return the producer if its op is one of these standard ops and this is its first output."""
    node = maker(tensor)
    if node is None or not is_standard(node, *ops) or node.outputs[0] is not tensor:
        return None
    return node


def composite(node: gs.Node | None, *names: str) -> str | None:
    """Return the variant suffix (``""`` for the plain name) if a node calls one of the composites.

    ``ai.coreai::rms_norm.wide_scale`` is the composite ``rms_norm`` in its variant ``wide_scale``.
    """
    if node is None or node.domain != DOMAIN:
        return None
    name, _, suffix = node.op.partition(".")
    return suffix if name in names else None


def scalar_of(tensor: gs.Tensor) -> float | None:
    """Return the value of a constant of one element."""
    values = constant_of(tensor, at_most=1)
    if values is None or values.size != 1 or values.dtype.kind == "O":
        return None
    return float(np.asarray(values, dtype=np.float64).reshape(()))


def scaled(node: gs.Node) -> tuple[gs.Tensor, float] | None:
    """Return the tensor and the constant scalar of a commutative node with two inputs."""
    if len(node.inputs) != 2:
        return None
    for tensor, other in (node.inputs, node.inputs[::-1]):
        value = scalar_of(other)
        if value is not None and not isinstance(tensor, gs.Constant):
            return tensor, value
    return None


def axes_of(node: gs.Node, index: int = 1) -> list[int] | None:
    """Return the axes of a node, from an input (opset 13 and later) or an attribute."""
    given = input_of(node, index)
    if given is not None:
        return ints_of(given)
    axes = attribute_of(node, "axes", None)
    return list(axes) if isinstance(axes, list | tuple) else None


def rank_of(tensor: gs.Tensor) -> int | None:
    """Return the number of dims, if known."""
    return None if tensor.shape is None else len(tensor.shape)


def cast_to(node: gs.Node | None) -> int | None:
    """Return the ONNX dtype that a ``Cast`` casts to; None if the node is not a ``Cast``."""
    to = attribute_of(node, "to", None) if node is not None and is_standard(node, "Cast") else None
    return to if isinstance(to, int) else None
