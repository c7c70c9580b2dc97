"""Replaces activations with onnxruntime's contrib ops."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    composite,
    dtype_of,
    made_by,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why


@rewrites("Gelu", composites=("gelu", "silu"))
def contrib_activations(edit: Edit, node: gs.Node, why: Why) -> bool:
    """gelu → Gelu, FastGelu or, after a bias, BiasGelu; silu → QuickGelu with a factor of 1.

    x ─Add(b)→ ─ai.coreai::gelu→ y     becomes     com.microsoft::BiasGelu(x, b) → y

    In float32 only, the one dtype for which onnxruntime has CPU kernels of them.
    """
    x = node.inputs[0]
    if dtype_of(x) != np.dtype(np.float32):
        return why("the dtype is not float32", node)
    if composite(node, "silu") is not None:
        # QuickGelu is x * sigmoid(alpha * x), by default with an alpha of 1.702.
        edit.become(node, "QuickGelu", [x], domain=CONTRIB_DOMAIN, alpha=1.0)
    elif attribute_of(node, "approximate", "none") == "tanh":
        edit.become(node, "FastGelu", [x], domain=CONTRIB_DOMAIN)
    else:
        _gelu(edit, node, x)
    return True


def _gelu(edit: Edit, node: gs.Node, x: gs.Tensor) -> None:
    add = made_by(x, "Add")
    if add is not None and len(x.outputs) == 1 and not edit.is_output(x) and edit.holds(add):
        for tensor, bias in (add.inputs, add.inputs[::-1]):
            shape, row = shape_of(tensor), shape_of(bias)
            # BiasGelu adds a row only; it does not broadcast.
            if shape and row is not None and len(row) == 1 and row == shape[-1:]:
                edit.become(node, "BiasGelu", [tensor, bias], domain=CONTRIB_DOMAIN)
                edit.remove(add)
                return
    edit.become(node, "Gelu", [x], domain=CONTRIB_DOMAIN)
