"""Folds batch normalization into the convolution before it, in inference mode."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import attribute_of, composite, input_of, made_by
from coreai_onnx.passes.engine.why import Why


@rewrites("BatchNormalization", composites=("batch_norm",))
def fold_batch_norms(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Conv, then batch normalization with constant statistics → Conv with scaled weights.

    x ─Conv(w, b)→ ─BatchNormalization(scale, bias, mean, var)→ y
    becomes     x ─Conv(w * f, (b - mean) * f + bias)→ y, f = scale / sqrt(var + eps)

    The weights are computed in float64 when the model is written, and rounded once.
    """
    eps = _eps(node)
    conv = None if eps is None else made_by(node.inputs[0], "Conv")
    if eps is None or conv is None:
        return False
    result, bias = conv.outputs[0], input_of(conv, 2)
    if len(result.outputs) > 1 or edit.is_output(result) or not edit.holds(conv):
        return why("something else reads the convolution", node)
    parameters = [conv.inputs[1], *node.inputs[1:5]]
    if bias is not None:
        parameters.append(bias)
    if len(node.inputs) < 5 or not all(isinstance(tensor, gs.Constant) for tensor in parameters):
        return why("weights or statistics are computed", node)
    channels = list(conv.inputs[1].shape[:1])
    if not channels or any(list(tensor.shape) != channels for tensor in parameters[1:]):
        return why("statistics must have one value per channel", node)
    # The file would have the weight twice, scaled and as it is.
    if len(conv.inputs[1].outputs) > 1:
        return why("something else reads the weight", node)
    # The other outputs are running statistics, which an inference does not update.
    if len(node.outputs) > 1:
        return why("the statistics are read", node)
    weights = _folded(edit, node, conv, eps)
    edit.become(node, "Conv", [conv.inputs[0], *weights], **conv.attrs)
    edit.remove(conv)
    return True


def _eps(node: gs.Node) -> float | None:
    """Return eps of a batch normalization in inference mode; None in training mode."""
    if composite(node, "batch_norm") is not None:
        eps = attribute_of(node, "eps", None)
    else:
        is_training = attribute_of(node, "training_mode", 0) != 0
        eps = None if is_training else attribute_of(node, "epsilon", 1e-5)
    return eps if isinstance(eps, float) else None


def _folded(edit: Edit, node: gs.Node, conv: gs.Node, eps: float) -> list[gs.Constant]:
    weight, bias = conv.inputs[1], input_of(conv, 2)
    statistics = [tensor for tensor in node.inputs[1:5] if isinstance(tensor, gs.Constant)]
    assert isinstance(weight, gs.Constant)
    dtype, channels = np.dtype(weight.dtype), list(weight.shape[:1])

    def factor(scale: np.ndarray, variance: np.ndarray) -> np.ndarray:
        wide = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + eps)
        return np.asarray(wide)

    def folded_weight(w: np.ndarray, s: np.ndarray, v: np.ndarray) -> np.ndarray:
        # Filters are the first axis of a weight of any rank; transposed, they are the last, along
        # which factors broadcast.
        return np.asarray((w.astype(np.float64).T * factor(s, v)).T.astype(dtype))

    def folded_bias(*arrays: np.ndarray) -> np.ndarray:
        scale, shift, mean, variance, *biases = (x.astype(np.float64) for x in arrays)
        start = biases[0] if biases else 0.0
        return np.asarray((start - mean) * factor(scale, variance) + shift).astype(dtype)

    scale, _, _, variance = statistics
    biases = [bias] if isinstance(bias, gs.Constant) else []
    path = weight.name.removesuffix(".weight")
    return [
        edit.lazy(f"{path}.folded.weight", folded_weight, [weight, scale, variance], weight.shape),
        edit.lazy(f"{path}.folded.bias", folded_bias, [*statistics, *biases], channels, dtype),
    ]
