"""Folds a constant per channel that is added to a convolution into its bias."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import lazy_constant
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import input_of, is_standard, made_by, rank_of
from coreai_onnx.passes.engine.why import Why


def add_to_conv_bias(graph: gs.Graph, why: Why) -> int:
    """Conv plus a constant per channel → Conv with it as a bias.

    x ─Conv(w)→ ─Add(c:[8, 1, 1])→ y     becomes     x ─Conv(w, c:[8])→ y
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if not is_standard(node, "Add"):
            continue
        for tensor, constant in (node.inputs, node.inputs[::-1]):
            conv = made_by(tensor, "Conv")
            if conv is None or not isinstance(constant, gs.Constant):
                continue
            if not _is_per_channel(conv, constant):
                why("the constant is not one per channel", node)
                continue
            if len(tensor.outputs) > 1 or edit.is_output(tensor) or not edit.holds(conv):
                why("something else reads the convolution", node)
                continue
            bias = input_of(conv, 2)
            if bias is not None and not isinstance(bias, gs.Constant):
                why("the bias is computed", node)
                continue
            inputs = [*conv.inputs[:2], _bias(edit, conv, constant, bias)]
            edit.become(node, "Conv", inputs, **conv.attrs)
            edit.remove(conv)
            count += 1
            break
    edit.finish()
    return count


def _is_per_channel(conv: gs.Node, constant: gs.Constant) -> bool:
    """Whether a constant has one value per channel, or one value for all channels."""
    weight, rank = conv.inputs[1], rank_of(conv.inputs[1])
    if rank is None or len(constant.shape) > rank or weight.shape[0] is None:
        return False
    dims = [1] * (rank - len(constant.shape)) + list(constant.shape)
    return dims[0] == 1 and dims[1] in (1, weight.shape[0]) and set(dims[2:]) == {1}


def _bias(
    edit: Edit, conv: gs.Node, constant: gs.Constant, bias: gs.Constant | None
) -> gs.Constant:
    channels = int(conv.inputs[1].shape[0])

    def added(*given: np.ndarray) -> np.ndarray:
        row = np.broadcast_to(given[0].reshape(-1), (channels,))
        return row if len(given) == 1 else (row + given[1]).astype(row.dtype)

    name = context_of(edit.graph).names.claim(f"{conv.inputs[1].name}.bias")
    return lazy_constant(name, added, [constant, *([] if bias is None else [bias])], [channels])
