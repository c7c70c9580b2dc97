"""Matches activations: as composites, as ONNX's ops, or decomposed."""

from __future__ import annotations

from dataclasses import dataclass

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import (
    attribute_of,
    composite,
    is_standard,
    maker,
    scalar_of,
    scaled,
)
from coreai_onnx.passes.engine.narrow import Computation, computation, computed_by

_NEAR = 1e-7
"""Constants of float32 differ by less from their decimal numbers."""


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


def spelled_gelu_tanh(node: gs.Node) -> Activation | None:
    """Match ``0.5 * x * (1 + tanh(√(2 / π) * (x + 0.044715 * x³)))``, as transformers writes it."""
    if not is_standard(node, "Mul"):
        return None
    for factor, other in (node.inputs, node.inputs[::-1]):
        half, shifted = computed_by(factor, "Mul"), computed_by(other, "Add")
        x, one_half = (half and scaled(half)) or (None, 0.0)
        tanh_result, one = (shifted and scaled(shifted)) or (None, 0.0)
        tanh = None if tanh_result is None else computed_by(tanh_result, "Tanh")
        inner = None if tanh is None else computed_by(tanh.inputs[0], "Mul")
        total, slope = (inner and scaled(inner)) or (None, 0.0)
        if total is None or (one_half, one) != (0.5, 1) or abs(slope - 0.7978845608) > _NEAR:
            continue
        for term in _others(computed_by(total, "Add"), x):
            cubic = computed_by(term, "Mul")
            cube, weight = (cubic and scaled(cubic)) or (None, 0.0)
            power = None if cube is None else computed_by(cube, "Pow")
            if power is None or power.inputs[0] is not x or scalar_of(power.inputs[1]) != 3:
                continue
            if x is not None and abs(weight - 0.044715) < _NEAR:
                return Activation("gelu_tanh", x)
    return None


def _others(total: Computation | None, term: gs.Tensor | None) -> list[gs.Tensor]:
    """Return the operands of a sum of two beside one of them."""
    if total is None or all(x is not term for x in total.inputs):
        return []
    return [x for x in total.inputs if x is not term]


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
