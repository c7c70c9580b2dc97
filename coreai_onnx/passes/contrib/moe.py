"""Replaces mixtures of experts with onnxruntime's MoE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
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

_INDICES = 3
"""The place of the indices in the inputs of the products."""


@dataclass(frozen=True)
class ExpertBlock:
    """Two products with the matrices of experts, and the sum over the experts of a token.

    Attributes:
        total: The sum.
        up: The product with gate weights, then up weights.
        down: The product after the gated activation.
        weights: The weights of the sum.
    """

    total: gs.Node
    up: gs.Node
    down: gs.Node
    weights: gs.Tensor

    @property
    def tokens(self) -> gs.Tensor:
        """The input; its last axis is the hidden states."""
        return behind_views(self.up.inputs[0])

    @property
    def experts(self) -> gs.Tensor:
        """The experts of each token, ``[tokens, k]``."""
        return self.down.inputs[_INDICES]

    @property
    def chosen(self) -> int | None:
        """The number of experts of a token; None if it is not known."""
        shape = shape_of(self.experts)
        return shape[-1] if shape and isinstance(shape[-1], int) else None

    @property
    def count(self) -> Dim | None:
        """The number of tokens; None if nothing is known of it."""
        shape = shape_of(self.total.outputs[0])
        return shape[0] if shape else None

    def is_float32(self, *others: gs.Tensor) -> bool:
        """Whether the result and other tensors are float32."""
        tensors = (*others, self.total.outputs[0])
        return all(dtype_of(tensor) == np.dtype(np.float32) for tensor in tensors)

    def is_laid_out(self, lanes: int, hidden: int) -> bool:
        """Whether each row of the products is a pair (token, expert of the token), in this order.

        Args:
            lanes: The size of the hidden states.
            hidden: The size between the products.
        """
        tokens, chosen, (up, down) = self.count, self.chosen, (self.up, self.down)
        ends = (up.inputs[0], up.outputs[0], down.inputs[0], down.outputs[0])
        layout = [
            (tokens, 1, 1, lanes),
            (tokens, chosen, 1, 2 * hidden),
            (tokens, chosen, 1, hidden),
            (tokens, chosen, 1, lanes),
        ]
        forms = [shape_of(tensor) for tensor in ends]
        return tokens is not None and forms == layout and shape_of(self.experts) == (tokens, chosen)


def expert_block(
    total: gs.Node, name: str, is_plain: Callable[[gs.Node], bool], why: Why
) -> ExpertBlock | None:
    """Return the block that ends in a sum; None if there is none.

    Args:
        total: The sum.
        name: The composite of the products.
        is_plain: Whether a product has no attributes or inputs that the pass does not know.
        why: Records why a sum of such products is not the end of a block.
    """
    product = _weighted_product(total, name)
    if product is None:
        return None
    down, weights = product
    gate = maker(behind_views(down.inputs[0]))
    if gate is None or composite(gate, "swiglu") is None:
        why("the activation must be swiglu", total)
        return None
    split = _halves(gate)
    up = None if split is None else maker(behind_views(split.inputs[0]))
    if up is None or composite(up, name) is None:
        why("gate and up must be one product", total)
        return None
    # onnxruntime's ops select the experts once, for both products.
    if not is_plain(up) or not is_plain(down) or up.inputs[_INDICES] is not down.inputs[_INDICES]:
        why("the products must have one matrix per token and expert", total)
        return None
    return ExpertBlock(total, up, down, weights)


def _weighted_product(total: gs.Node, name: str) -> tuple[gs.Node, gs.Tensor] | None:
    """Return the last product of the experts, and the weights of the sum over it."""
    # [tokens, k, lanes], summed over the k experts of a token.
    shape = shape_of(total.inputs[0])
    if shape is None or len(shape) != 3 or axes_of(total) not in ([1], [-2]):
        return None
    product = made_by(total.inputs[0], "Mul")
    if product is None or attribute_of(total, "keepdims", 1) != 0:
        return None
    for rows, weights in (product.inputs, product.inputs[::-1]):
        call = maker(behind_views(rows))
        if call is not None and composite(call, name) is not None:
            return call, weights
    return None


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


def softmax_routing(block: ExpertBlock) -> tuple[gs.Tensor, bool] | None:
    """Return the logits, and whether the weights of the chosen experts are normalized.

    None if the experts are not those with the largest values of a Softmax.
    """
    experts, weights = block.experts, block.weights
    top = maker(experts)
    if top is None or not is_standard(top, "TopK") or top.outputs[1] is not experts:
        return None
    softmax = made_by(top.inputs[0], "Softmax")
    shape = shape_of(top.inputs[0])
    if softmax is None or shape is None or len(shape) != 2:
        return None
    axes = attribute_of(softmax, "axis", -1), attribute_of(top, "axis", -1)
    # The op computes a Softmax over the experts of each token and takes the largest values.
    if not set(axes) <= {-1, 1} or attribute_of(top, "largest", 1) != 1:
        return None
    # MoE has the number of experts of a token as an attribute.
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


def rows_of_tokens(edit: Edit, block: ExpertBlock, lanes: int) -> gs.Tensor:
    """Return the tokens as ``[tokens, lanes]``."""
    total = block.total
    flat = edit.constant(f"{total.outputs[0].name}_lanes", np.array([-1, lanes], np.int64))
    dtype, shape = total.outputs[0].dtype, [block.count, lanes]
    return edit.add("Reshape", total, [block.tokens, flat], dtype, shape)


def in_turns(values: np.ndarray) -> np.ndarray:
    """Return gate and up weights ``[experts, 2 * hidden, …]`` with their rows interleaved."""
    # Gate rows are the first half of the matrix of an expert, up rows the second.
    halves = values.reshape(values.shape[0], 2, values.shape[1] // 2, -1)
    return np.reshape(halves.transpose(0, 2, 1, 3), values.shape)


@rewrites("ReduceSum")
def contrib_moe(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Softmax, TopK, two gather_mm around a swiglu, and their weighted sum → one MoE.

    r ─Softmax→ ─TopK(2)→ w, e; x ─gather_mm(e)→ ─Split→ ─swiglu→ ─gather_mm(e)→ ─Mul(w)→ ─Sum→ y
    becomes     com.microsoft::MoE(x, r, gate_up, , down) ─Mul(Sum(w))→ y

    Without the product if the weights are normalized. onnxruntime expects the rows of gate and up
    weights interleaved. The weights are rearranged when the model is written, one at a time.
    """
    interleaved: dict[int, gs.Constant] = edit.once(dict)
    block = expert_block(node, "gather_mm", _is_plain, why)
    if block is None:
        return False
    routed, up, down = softmax_routing(block), block.up.inputs[1], block.down.inputs[1]
    if routed is None:
        return why("the experts are not chosen by a Softmax and a TopK", node)
    logits, is_normalized = routed
    if not isinstance(up, gs.Constant) or not isinstance(down, gs.Constant):
        return why("the weights are not constant", node)
    if not block.is_float32(up, down, logits):
        return why("the dtype is not float32", node)
    sizes = _sizes(up, down)
    if sizes is None or not block.chosen or block.count is None:
        return why("the sizes are not known", node)
    if not block.is_laid_out(*sizes):
        return why("the products must have one matrix per token and expert", node)
    # Blocks that share experts share the rearranged weight too.
    if id(up) not in interleaved:
        interleaved[id(up)] = edit.lazy(f"{up.name}.in_turns", in_turns, [up], up.shape)
    tokens = rows_of_tokens(edit, block, sizes[0])
    inputs = [tokens, logits, interleaved[id(up)], gs.Variable.empty(), down]
    _write(edit, block, inputs, is_normalized=is_normalized)
    return True


def _write(edit: Edit, block: ExpertBlock, inputs: list[gs.Tensor], *, is_normalized: bool) -> None:
    node, rows = block.total, inputs[0]
    attrs: dict[str, Any] = {
        "domain": CONTRIB_DOMAIN,
        "k": block.chosen,
        "activation_type": "swiglu",
        # 1: gate and up are one product with interleaved rows.
        "swiglu_fusion": 1,
        "normalize_routing_weights": 1,
    }
    if is_normalized:
        edit.become(node, "MoE", inputs, **attrs)
        return
    # With weights that are not normalized, the kernel clears its result before it reads the tokens,
    # and both may be one buffer (1.23 to 1.31). So the weights are normalized, and the result is
    # multiplied by their sum.
    weights, dtype = behind_views(block.weights), node.outputs[0].dtype
    last = edit.constant(f"{node.outputs[0].name}_last", np.array([1], np.int64))
    total = edit.add("ReduceSum", node, [weights, last], dtype, [block.count, 1], keepdims=1)
    mean = edit.add("MoE", node, inputs, dtype, rows.shape, **attrs)
    edit.become(node, "Mul", [mean, total])


def _is_plain(call: gs.Node) -> bool:
    """Whether a call only multiplies each token by its transposed matrices."""
    return (
        attribute_of(call, "transpose_rhs", 0) == 1
        and attribute_of(call, "num_batch_axes", 0) == 0
        and input_of(call, 2) is None
        and input_of(call, 3) is not None
    )


def _sizes(up: gs.Constant, down: gs.Constant) -> tuple[int, int] | None:
    """Return lanes and hidden size if the shapes of the experts' weights agree."""
    if len(up.shape) != 3 or len(down.shape) != 3 or up.shape[0] != down.shape[0]:
        return None
    lanes, hidden = int(down.shape[1]), int(down.shape[2])
    return (lanes, hidden) if list(up.shape[1:]) == [2 * hidden, lanes] else None
