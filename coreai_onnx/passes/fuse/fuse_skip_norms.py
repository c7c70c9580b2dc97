"""Fuses a residual connection with the norm of its sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, append_body, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import DOMAIN, dtype_of, same_known_shape
from coreai_onnx.passes.engine.narrow import computed_by
from coreai_onnx.passes.engine.why import Why

_NORMS = ("rms_norm", "layer_norm")


@makes_functions
@rewrites(composites=_NORMS)
def fuse_skip_norms(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Add, then rms_norm or layer_norm of the sum → skip_rms_norm or skip_layer_norm.

    Add(x, residual) → s, rms_norm(s, w) → y, s is read again
    becomes     skip_rms_norm(x, residual, w) → y, s
    """
    add = computed_by(node.inputs[0], "Add")
    if add is None or not edit.holds(add.last):
        return False
    if not same_known_shape(*add.inputs):
        return why("the terms are not known to have the same shape", node)
    if dtype_of(add.inputs[0]) != dtype_of(add.inputs[1]):
        return why("the terms have different dtypes", node)
    # A scale that is computed from the sum would make a cycle: the node that gives the sum
    # reads it.
    if any(tensor.inputs for tensor in node.inputs[1:]):
        return why("scale or bias is computed", node)
    name = f"skip_{node.op}"
    op_type = _provided(bodies, name, node, dtype_of(add.inputs[0]))
    if op_type is None:
        return why(f"the model's {name} has another body", node)
    inputs, attrs = [*add.inputs, *node.inputs[1:]], dict(node.attrs)
    total = add.outputs[0]
    edit.become(node, op_type, inputs, domain=DOMAIN, **attrs)
    # The next block reads the sum again, under its name.
    edit.produce(node, total)
    edit.remove(add.last)
    return True


def _provided(bodies: Bodies, name: str, norm: gs.Node, dtype: np.dtype[Any] | None) -> str | None:
    """Return the op type of the sum followed by the body of the norm, which the model has."""
    # The writer of bodies decides between Add and Sum: onnxruntime fuses an Add with the norm,
    # which is slower since 1.30 (docs/internals/performance_log.md, Norms).
    body = bodies.body(f"{name.partition('.')[0]}/sum", dtype)
    function = bodies.function(norm)
    if body is None or function is None or not append_body(body, function):
        return None
    body.name = name
    return bodies.provide(body, dtype)
