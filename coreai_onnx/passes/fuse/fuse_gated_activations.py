"""Fuses gated activations: swiglu and geglu."""

from __future__ import annotations

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.activations import activation_of
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import dtype_of, is_standard, same_known_shape
from coreai_onnx.passes.engine.narrow import computation
from coreai_onnx.passes.engine.why import Why

_COMPOSITES = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu.tanh"}


@makes_functions
@rewrites("Mul", "Cast")
def fuse_gated_activations(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """silu(gate) * up → swiglu; gelu(gate) * up → geglu.

    gate ─Sigmoid→ s, Mul(gate, s) → a, Mul(a, up) → y     becomes     swiglu(gate, up) → y
    """
    product = computation(node)
    if not is_standard(product, "Mul"):
        return False
    for activated, up in (product.inputs, product.inputs[::-1]):
        gate = activation_of(activated)
        if gate is None or up is gate.input or not same_known_shape(gate.input, up):
            continue
        dtype = dtype_of(gate.input)
        if dtype is None or dtype_of(up) != dtype:
            why("the factors are not known to have the same dtype", node)
            continue
        # The activation would be computed twice.
        if len(activated.outputs) > 1 or edit.is_output(activated):
            why("something else reads the activation", node)
            continue
        name = _COMPOSITES[gate.kind]
        op_type = bodies.provide_composite(name, dtype)
        if op_type is None:
            why(f"the model's {name} has another body", node)
            continue
        attrs: dict[str, object] = {"version": 1}
        if gate.kind != "silu":
            attrs["approximate"] = "tanh" if gate.kind == "gelu_tanh" else "none"
        edit.become(node, op_type, [gate.input, up], domain=STANDARD_DOMAIN, **attrs)
        return True
    return False
