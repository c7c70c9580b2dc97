"""Fuses a residual connection with the norm of its sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.bodies import Bodies, bodies_of
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import DOMAIN, composite, dtype_of, made_by, same_known_shape
from coreai_onnx.passes.engine.why import Why

_NORMS = ("rms_norm", "layer_norm")
FORMULAS = {
    "skip_rms_norm": "sum = input + skip; output = rms_norm(sum, scale)",
    "skip_layer_norm": "sum = input + skip; output = layer_norm(sum, scale, bias)",
}
_BODY = """<axes, eps: float = 1e-05, version: int = 1> (input, skip{rest}) => (output, sum) {{
  sum = {add} (input, skip)
  output = ai.coreai.norm <axes: ints = @axes, eps: float = @eps, version = 1> (sum{rest})
}}"""


def fuse_skip_norms(graph: gs.Graph, why: Why) -> int:
    """Add, then rms_norm or layer_norm of the sum → skip_rms_norm or skip_layer_norm.

    Add(x, residual) → s, rms_norm(s, w) → y, s is read again
    becomes     skip_rms_norm(x, residual, w) → y, s
    """
    bodies = bodies_of(graph)
    if bodies is None:
        return 0
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        suffix = composite(node, *_NORMS)
        add = None if suffix is None else made_by(node.inputs[0], "Add")
        if suffix is None or add is None or not edit.holds(add):
            continue
        if not same_known_shape(*add.inputs):
            why("the terms are not known to have the same shape", node)
            continue
        if any(tensor.inputs for tensor in node.inputs[1:]):
            why("scale or bias is computed", node)
            continue
        name = f"skip_{node.op}"
        if not _provide(bodies, name, node, dtype_of(add.inputs[0])):
            why(f"the model's {name} has another body", node)
            continue
        inputs, attrs = [*add.inputs, *node.inputs[1:]], dict(node.attrs)
        total = add.outputs[0]
        edit.become(node, name, inputs, domain=DOMAIN, **attrs)
        edit.produce(node, total)
        edit.remove(add)
        count += 1
    edit.finish()
    return count


def _provide(bodies: Bodies, name: str, norm: gs.Node, dtype: np.dtype[Any] | None) -> bool:
    """Make sure that the model has the function.

    onnxruntime fuses Add and LayerNormalization into one op, which since 1.30 takes up to four
    times as long as the two (docs/performance.md). It does not fuse Sum, which it supports in
    float32 only. A body that a file already contains is not changed.
    """
    rest = "".join(f", {word}" for word in ("scale", "bias")[: len(norm.inputs) - 1])
    formula = FORMULAS[name.partition(".")[0]]
    apart = bodies.opset >= 23 and name.startswith("skip_layer_norm")
    adds = ("Sum", "Add") if apart and dtype == np.dtype(np.float32) else ("Add",)
    texts = (_BODY.format(rest=rest, add=add) for add in adds)
    return any(bodies.provide(name, text, formula, {"norm": norm.op}) is not None for text in texts)
