"""Operators whose result takes the memory of an input, as measured with onnxruntime's CPU provider.

`tests/runtime/memory/test_in_place.py` measures every operator of these tables.
"""

from __future__ import annotations

from coreai_onnx.runtime.memory.recorded_session import RecordedNode

VIEWS = frozenset("Reshape Flatten Squeeze Unsqueeze Identity".split())
"""Operators whose result is the memory of the first input, whoever else reads it."""

IN_PLACE = frozenset(
    """
    Cast Celu Clip Elu HardSigmoid LeakyRelu LogSoftmax Relu ScatterElements Selu Shrink Sigmoid
    Softmax Softplus Softsign Tanh ThresholdedRelu Trilu
    """.split()
)
"""Operators whose result takes the memory of the first input, if that has the same size and no
other reader."""

_KERNELS = "kv_cache_update rope geglu swiglu add_bias".split()
_OTHERS = {
    **{("ai.coreai", name): 0 for name in _KERNELS},  # they declare it with InPlace()
    ("com.microsoft", "FusedConv"): 3,  # the summand
    ("com.microsoft.nchwc", "Conv"): 3,
}
_ONNX = ("", "ai.onnx")


def is_view(node: RecordedNode) -> bool:
    """Return whether the result of a node is the memory of its first input."""
    return node.domain in _ONNX and node.op in VIEWS


def overwritten(node: RecordedNode) -> str | None:
    """Return the input whose memory the result of a node may take; None if there is none."""
    if node.domain in _ONNX:
        index = 0 if node.op in IN_PLACE else None
    else:
        index = _OTHERS.get((node.domain, node.op.partition(".")[0]))
    return None if index is None or index >= len(node.inputs) else node.inputs[index]
