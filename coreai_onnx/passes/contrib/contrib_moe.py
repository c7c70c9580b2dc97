"""Replaces mixtures of experts with onnxruntime's MoE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.context import context_of
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.lazy import lazy_constant
from coreai_onnx.passes.engine.match import (
    CONTRIB_DOMAIN,
    Dim,
    attribute_of,
    axes_of,
    behind_views,
    composite,
    dtype_of,
    input_of,
    ints_of,
    is_standard,
    made_by,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why


@dataclass(frozen=True)
class _Block:
    """A router and its experts.

    Attributes:
        tokens: The input; its last axis is the hidden states (``lanes``).
        logits: The output of the router, ``[tokens, experts]``.
        up: Gate weights, then up weights, ``[experts, 2 * hidden, lanes]``.
        down: ``[experts, lanes, hidden]``.
        chosen: Number of experts per token.
        is_normalized: Whether the weights of a token's experts are normalized to sum to one.
        count: Number of tokens.
    """

    tokens: gs.Tensor
    logits: gs.Tensor
    up: gs.Constant
    down: gs.Constant
    chosen: int
    is_normalized: bool
    count: Dim


def contrib_moe(graph: gs.Graph, why: Why) -> int:
    """Softmax, TopK, two gather_mm around a swiglu, and their weighted sum → one MoE.

    r ─Softmax→ ─TopK(2)→ w, e; x ─gather_mm(e)→ ─Split→ ─swiglu→ ─gather_mm(e)→ ─Mul(w)→ ─Sum→ y
    becomes     com.microsoft::MoE(x, r, gate_up, , down) → y

    onnxruntime expects the rows of gate and up weights interleaved. The weights are rearranged
    when the model is written, one at a time.
    """
    edit, count = Edit(graph), 0
    interleaved: dict[int, gs.Constant] = {}
    for node in graph.nodes:
        if not is_standard(node, "ReduceSum"):
            continue
        product = _weighted_product(node)
        if product is None:
            continue
        call, weights = product
        block = _block(node, call, weights, why)
        if block is None:
            continue
        if id(block.up) not in interleaved:
            interleaved[id(block.up)] = _in_turns(edit, block.up)
        lanes = block.down.shape[1]
        flat = edit.constant(f"{node.outputs[0].name}_lanes", np.array([-1, lanes], np.int64))
        tokens = edit.node("Reshape", node, [block.tokens, flat]).outputs[0]
        tokens.dtype, tokens.shape = node.outputs[0].dtype, [block.count, lanes]
        inputs = [tokens, block.logits, interleaved[id(block.up)], gs.Variable.empty(), block.down]
        edit.become(
            node,
            "MoE",
            inputs,
            domain=CONTRIB_DOMAIN,
            k=block.chosen,
            activation_type="swiglu",
            swiglu_fusion=1,
            normalize_routing_weights=int(block.is_normalized),
        )
        count += 1
    edit.finish()
    return count


def _weighted_product(total: gs.Node) -> tuple[gs.Node, gs.Tensor] | None:
    """Return the last product of the experts, and the weights of the sum over it."""
    shape = shape_of(total.inputs[0])
    if shape is None or len(shape) != 3 or axes_of(total) not in ([1], [-2]):
        return None
    product = made_by(total.inputs[0], "Mul")
    if product is None or attribute_of(total, "keepdims", 1) != 0:
        return None
    for rows, weights in (product.inputs, product.inputs[::-1]):
        call = maker(behind_views(rows))
        if call is not None and composite(call, "gather_mm") is not None:
            return call, weights
    return None


def _block(total: gs.Node, down: gs.Node, weights: gs.Tensor, why: Why) -> _Block | None:
    """Return the block that ends in a sum, if onnxruntime's op is equivalent."""
    gate = maker(behind_views(down.inputs[0]))
    if gate is None or composite(gate, "swiglu") is None:
        why("the activation is no swiglu", total)
        return None
    split = _halves(gate)
    up = None if split is None else maker(behind_views(split.inputs[0]))
    if up is None or composite(up, "gather_mm") is None:
        why("gates and ups are not one product", total)
        return None
    if _unlike(up) or _unlike(down) or up.inputs[3] is not down.inputs[3]:
        why("the products are not of one matrix per token and expert", total)
        return None
    routed = _routing(down.inputs[3], weights)
    if routed is None:
        why("the experts are not chosen by a Softmax and a TopK", total)
        return None
    logits, is_normalized = routed
    first, second = up.inputs[1], down.inputs[1]
    if not isinstance(first, gs.Constant) or not isinstance(second, gs.Constant):
        why("the weights are not constant", total)
        return None
    tensors = (first, second, logits, total.outputs[0])
    if any(dtype_of(tensor) != np.dtype(np.float32) for tensor in tensors):
        why("the dtype is not float32", total)
        return None
    chosen, count = shape_of(down.inputs[3]), shape_of(total.outputs[0])
    sizes = _sizes(first, second)
    if sizes is None or not chosen or not isinstance(chosen[-1], int) or not count:
        why("the sizes are not known", total)
        return None
    if not _is_laid_out(up, down, count[0], chosen[-1], sizes):
        why("the products are not of one matrix per token and expert", total)
        return None
    tokens = behind_views(up.inputs[0])
    return _Block(tokens, logits, first, second, chosen[-1], is_normalized, count[0])


def _halves(gate: gs.Node) -> gs.Node | None:
    """Return the Split whose halves of the last axis are gate and up, in this order."""
    gates, ups = (behind_views(tensor) for tensor in gate.inputs[:2])
    split = made_by(gates, "Split")
    if split is None or len(split.outputs) != 2 or split.outputs[1] is not ups:
        return None
    whole, first, second = (shape_of(t) for t in (split.inputs[0], *split.outputs))
    if whole is None or first is None or second is None or first[-1] != second[-1]:
        return None
    if attribute_of(split, "axis", 0) not in (-1, len(whole) - 1):
        return None
    return split if isinstance(first[-1], int) else None


def _unlike(call: gs.Node) -> bool:
    """Whether a call does anything but multiply each token by its transposed matrices."""
    return (
        attribute_of(call, "transpose_rhs", 0) != 1
        or attribute_of(call, "num_batch_axes", 0) != 0
        or input_of(call, 2) is not None
        or input_of(call, 3) is None
    )


def _sizes(up: gs.Constant, down: gs.Constant) -> tuple[int, int] | None:
    """Return lanes and hidden size if the shapes of the experts' weights agree."""
    if len(up.shape) != 3 or len(down.shape) != 3 or up.shape[0] != down.shape[0]:
        return None
    lanes, hidden = int(down.shape[1]), int(down.shape[2])
    return (lanes, hidden) if list(up.shape[1:]) == [2 * hidden, lanes] else None


def _is_laid_out(
    up: gs.Node, down: gs.Node, tokens: Dim, chosen: int, sizes: tuple[int, int]
) -> bool:
    """Whether each row of the products is a pair (token, expert of the token), in this order."""
    lanes, hidden = sizes
    known = [shape_of(t) for t in (up.inputs[0], up.outputs[0], down.inputs[0], down.outputs[0])]
    wanted = [
        (tokens, 1, 1, lanes),
        (tokens, chosen, 1, 2 * hidden),
        (tokens, chosen, 1, hidden),
        (tokens, chosen, 1, lanes),
    ]
    return tokens is not None and known == wanted and shape_of(down.inputs[3]) == (tokens, chosen)


def _routing(experts: gs.Tensor, weights: gs.Tensor) -> tuple[gs.Tensor, bool] | None:
    """Return the logits, and whether the weights of the chosen experts are normalized."""
    top = maker(experts)
    if top is None or not is_standard(top, "TopK") or top.outputs[1] is not experts:
        return None
    softmax = made_by(top.inputs[0], "Softmax")
    shape = shape_of(top.inputs[0])
    if softmax is None or shape is None or len(shape) != 2:
        return None
    axes = attribute_of(softmax, "axis", -1), attribute_of(top, "axis", -1)
    if not set(axes) <= {-1, 1} or attribute_of(top, "largest", 1) != 1:
        return None
    if ints_of(top.inputs[1]) is None:
        return None
    apart = behind_views(weights)
    if shape_of(weights) != (shape_of(experts) or ()) + (1,):
        return None
    if apart is top.outputs[0]:
        return softmax.inputs[0], False
    quotient = made_by(apart, "Div")
    if quotient is None or quotient.inputs[0] is not top.outputs[0]:
        return None
    total = made_by(quotient.inputs[1], "ReduceSum")
    if total is None or total.inputs[0] is not top.outputs[0] or axes_of(total) not in ([1], [-1]):
        return None
    return (softmax.inputs[0], True) if attribute_of(total, "keepdims", 1) == 1 else None


def _in_turns(edit: Edit, up: gs.Constant) -> gs.Constant:
    """Return gate and up weights with their rows interleaved."""
    experts, rows, lanes = (int(size) for size in up.shape)
    name = context_of(edit.graph).names.claim(f"{up.name}.in_turns")

    def turns(values: np.ndarray) -> np.ndarray:
        halves = values.reshape(experts, 2, rows // 2, lanes)
        return np.reshape(halves.transpose(0, 2, 1, 3), (experts, rows, lanes))

    return lazy_constant(name, turns, [up], [experts, rows, lanes])
