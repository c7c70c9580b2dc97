"""The body of ``gated_delta_update``: a scan over the tokens, for any length.

Axes are permuted before the scan so that the steps need no reshape: the state is
``[batch, heads, groups, Dk, Dv]``, where each query and key head serves a group of value heads, and
a token's query and key are rows of ``Dk``, its value a row of ``Dv``.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, always_cast
from coreai_onnx.bodies.writers import writes
from coreai_onnx.composites.gated_delta import NORM_EPS
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, ir_dtype


def _words(variant: Variant) -> list[str]:
    words = [] if "initial_state" in variant.inputs else ["no_state"]
    return words if variant.attributes["use_qk_l2_norm"] else [*words, "no_norm"]


@writes("gated_delta_update", words=_words)
def gated_delta_update(b: BodyBuilder) -> list[Value]:
    """Write the body; see :mod:`coreai_onnx.composites.gated_delta`."""
    op, (query, key, value, g, beta) = b.op, b.inputs[:5]
    wide = b.wide
    q, k, v, rate, decay = (always_cast(op, x, wide) for x in (query, key, value, beta, g))
    if b.attributes["use_qk_l2_norm"]:
        q, k = _unit_length(op, q), _unit_length(op, k)
    lanes = op.Shape(key, start=3, end=4)
    q = op.Mul(q, op.Reciprocal(op.Sqrt(always_cast(op, lanes, wide))))
    sizes = _Sizes(op, key, value)
    # allowzero, because a size of 0 would otherwise mean that of the input.
    tokens = [
        op.Reshape(q, sizes("B H 1 S 1 D"), allowzero=1),
        # The key is passed as a row and as a column, so that no step transposes it.
        op.Reshape(k, sizes("B H 1 S 1 D"), allowzero=1),
        op.Reshape(k, sizes("B H 1 S D 1"), allowzero=1),
        op.Reshape(v, sizes("B H R S 1 E"), allowzero=1),
        op.Reshape(rate, sizes("B H R S 1 1"), allowzero=1),
        op.Reshape(op.Exp(decay), sizes("B H R S 1 1"), allowzero=1),
    ]
    initial = b.input("initial_state")
    if initial is None:
        state = op.Expand(op.const(0.0, wide), sizes("B H R D E"))
    else:
        state = op.Reshape(always_cast(op, initial, wide), sizes("B H R D E"), allowzero=1)
    last, outputs = _scan(op, state, tokens, wide)
    outputs = op.Reshape(outputs, sizes("B S V E"), allowzero=1)
    last = op.Reshape(last, sizes("B V D E"), allowzero=1)
    return [op.CastLike(outputs, query), op.CastLike(last, query if initial is None else initial)]


class _Sizes:
    """Shapes from the letters of their sizes; R is the number of value heads per key head.

    Args:
        op: Creates the nodes.
        key: ``[B, H, S, D]``.
        value: ``[B, V, S, E]``.
    """

    def __init__(self, op: OpBuilder, key: Value, value: Value) -> None:
        self._op = op
        self._sizes = {n: op.Shape(key, start=i, end=i + 1) for i, n in enumerate("BHSD")}
        self._sizes["V"] = op.Shape(value, start=1, end=2)
        self._sizes["E"] = op.Shape(value, start=3, end=4)
        self._sizes["R"] = op.Div(self._sizes["V"], self._sizes["H"])
        self._sizes["1"] = op.const([1])

    def __call__(self, letters: str) -> Value:
        """Return the shape with these sizes."""
        return self._op.Concat(*(self._sizes[n] for n in letters.split()), axis=0)


def _scan(
    op: OpBuilder, state: Value, tokens: Sequence[Value], wide: torch.dtype
) -> tuple[Value, Value]:
    """Return the state after the last token, and the outputs ``[B, S, H, R, 1, E]``."""
    names, type_ = op.scope.names, ir.TensorType(ir_dtype(wide))
    graph = ir.Graph([], [], nodes=[], name=names.unique("token"))
    inner = op.inside(op.scope.nested(graph))
    roles = ("state", "query", "key", "key_column", "value", "beta", "decay")
    inputs = [ir.Value(name=names.unique(f"one_{n}"), type=type_) for n in roles]
    graph.inputs.extend(inputs)
    before, query, key, column, value, rate, decay = inputs
    faded = inner.Mul(before, decay)
    write_ = inner.Mul(inner.Sub(value, inner.MatMul(key, faded)), rate)
    after = inner.Add(faded, inner.MatMul(column, write_))
    graph.outputs.extend([after, inner.MatMul(query, after)])
    for value_ in inputs:
        value_.type = None  # left to shape inference, so that the text is equal for all dtypes
    last, outputs = op.call(
        "",
        "Scan",
        [state, *tokens],
        {
            "body": graph,
            "num_scan_inputs": len(tokens),
            # The tokens are axis 3 of every input and axis 1 of the output.
            "scan_input_axes": [3] * len(tokens),
            "scan_output_axes": [1],
        },
        outputs=2,
    )
    last.dtype = outputs.dtype = ir_dtype(wide)
    return last, outputs


def _unit_length(op: OpBuilder, x: Value) -> Value:
    squared = op.ReduceSum(op.Mul(x, x), [-1], keepdims=1)
    return op.Div(x, op.Sqrt(op.Add(squared, NORM_EPS)))
