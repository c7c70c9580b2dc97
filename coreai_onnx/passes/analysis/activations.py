"""Matches activations: as composites, as ONNX's ops, or decomposed."""

from __future__ import annotations

from dataclasses import dataclass

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import (
    attribute_of,
    composite,
    is_standard,
    maker,
    scaled,
)
from coreai_onnx.passes.engine.narrow import Computation, computation, computed_by


@dataclass(frozen=True)
class Activation:
    """An activation and what it is computed of.

    Attributes:
        kind: ``"silu"``, ``"gelu"`` or ``"gelu_tanh"``.
        input: Its input.
    """

    kind: str
    input: gs.Tensor


def activation_of(tensor: gs.Tensor) -> Activation | None:
    """Return the activation whose result a tensor is."""
    node = maker(tensor)
    if node is None:
        return None
    if composite(node, "silu") is not None:
        return Activation("silu", node.inputs[0])
    if composite(node, "gelu") is not None or is_standard(node, "Gelu"):
        approximate = attribute_of(node, "approximate", "none")
        kinds = {"none": "gelu", "tanh": "gelu_tanh"}
        # In a function, the attribute may be a reference, whose value differs from call to call.
        return Activation(kinds[approximate], node.inputs[0]) if approximate in kinds else None
    spelled = computation(node)
    return _spelled_silu(spelled) or _spelled_gelu(spelled)


def _spelled_silu(node: Computation) -> Activation | None:
    if not is_standard(node, "Mul"):
        return None
    for x, factor in (node.inputs, node.inputs[::-1]):
        sigmoid = computed_by(factor, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs[0] is x:
            return Activation("silu", x)
    return None


def _spelled_gelu(node: Computation) -> Activation | None:
    """Match ``0.5 * (x * (1 + erf(x / √2)))``, as exporters write it."""
    outer = scaled(node) if is_standard(node, "Mul") else None
    product = None if outer is None or outer[1] != 0.5 else computed_by(outer[0], "Mul")
    if product is None:
        return None
    for x, factor in (product.inputs, product.inputs[::-1]):
        shifted = computed_by(factor, "Add")
        parts = None if shifted is None else scaled(shifted)
        erf = None if parts is None or parts[1] != 1.0 else computed_by(parts[0], "Erf")
        inner = None if erf is None else computed_by(erf.inputs[0], "Div", "Mul")
        if inner is None or inner.inputs[0] is not x:
            continue
        by = scaled(inner)
        root = 2**0.5 if inner.op == "Div" else 0.5**0.5
        # The bound admits √2 rounded to float32, and rejects 1.4142.
        if by is not None and abs(by[1] - root) < 1e-6:
            return Activation("gelu", x)
    return None
