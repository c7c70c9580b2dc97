"""Fuses gated activations: swiglu and geglu."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    DOMAIN,
    attribute_of,
    composite,
    dtype_of,
    is_standard,
    maker,
    same_known_shape,
    scaled,
)
from coreai_onnx.passes.engine.narrow import Computation, computation, computed_by
from coreai_onnx.passes.engine.why import Why


@dataclass(frozen=True)
class _Gate:
    """The input of the activation, and the composite that includes the product."""

    input: gs.Tensor
    name: str


@makes_functions
def fuse_gated_activations(graph: gs.Graph, why: Why, bodies: Bodies) -> int:
    """silu(gate) * up → swiglu; gelu(gate) * up → geglu.

    gate ─Sigmoid→ s, Mul(gate, s) → a, Mul(a, up) → y     becomes     swiglu(gate, up) → y
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        product = computation(node)
        if not is_standard(product, "Mul"):
            continue
        for activated, up in (product.inputs, product.inputs[::-1]):
            gate = _activation(activated)
            if gate is None or up is gate.input or not same_known_shape(gate.input, up):
                continue
            dtype = dtype_of(gate.input)
            if dtype is None or dtype_of(up) != dtype:
                why("the factors are not known to have the same dtype", node)
                continue
            if len(activated.outputs) > 1 or edit.is_output(activated):
                why("something else reads the activation", node)
                continue
            op_type = bodies.provide_composite(gate.name, dtype)
            if op_type is None:
                why(f"the model's {gate.name} has another body", node)
                continue
            attrs: dict[str, object] = {"version": 1}
            if gate.name != "swiglu":
                attrs["approximate"] = "tanh" if gate.name == "geglu.tanh" else "none"
            edit.become(node, op_type, [gate.input, up], domain=DOMAIN, **attrs)
            count += 1
            break
    edit.finish()
    return count


def _activation(tensor: gs.Tensor) -> _Gate | None:
    """Match silu or gelu, as a composite, as ONNX's op, or decomposed."""
    node = maker(tensor)
    if node is None:
        return None
    if composite(node, "silu") is not None:
        return _Gate(node.inputs[0], "swiglu")
    if composite(node, "gelu") is not None or is_standard(node, "Gelu"):
        approximate = attribute_of(node, "approximate", "none")
        names = {"none": "geglu", "tanh": "geglu.tanh"}
        return _Gate(node.inputs[0], names[approximate]) if approximate in names else None
    spelled = computation(node)
    return _spelled_silu(spelled) or _spelled_gelu(spelled)


def _spelled_silu(node: Computation) -> _Gate | None:
    if not is_standard(node, "Mul"):
        return None
    for x, factor in (node.inputs, node.inputs[::-1]):
        sigmoid = computed_by(factor, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs[0] is x:
            return _Gate(x, "swiglu")
    return None


def _spelled_gelu(node: Computation) -> _Gate | None:
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
        wanted = 2**0.5 if inner.op == "Div" else 0.5**0.5
        if by is not None and abs(by[1] - wanted) < 1e-6:
            return _Gate(x, "geglu")
    return None
