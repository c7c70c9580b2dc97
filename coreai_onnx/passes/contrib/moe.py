"""Replaces mixtures of experts with onnxruntime's MoE."""

from __future__ import annotations

from dataclasses import dataclass

from coreai_onnx.passes.contrib.expert_blocks import (
    ExpertBlock,
    expert_block,
    in_turns,
    rows_of_tokens,
    softmax_routing,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import lazy_constant
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import CONTRIB_DOMAIN, attribute_of, input_of
from coreai_onnx.passes.engine.why import Why


@dataclass(frozen=True)
class _Block:
    """A router and its experts.

    Attributes:
        found: The products and their sum.
        logits: The output of the router, ``[tokens, experts]``.
        is_normalized: Whether the weights of a token's experts are normalized to sum to one.
        up: Gate weights, then up weights, ``[experts, 2 * hidden, lanes]``.
        down: ``[experts, lanes, hidden]``.
    """

    found: ExpertBlock
    logits: gs.Tensor
    is_normalized: bool
    up: gs.Constant
    down: gs.Constant


@rewrites("ReduceSum")
def contrib_moe(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Softmax, TopK, two gather_mm around a swiglu, and their weighted sum → one MoE.

    r ─Softmax→ ─TopK(2)→ w, e; x ─gather_mm(e)→ ─Split→ ─swiglu→ ─gather_mm(e)→ ─Mul(w)→ ─Sum→ y
    becomes     com.microsoft::MoE(x, r, gate_up, , down) → y

    onnxruntime expects the rows of gate and up weights interleaved. The weights are rearranged
    when the model is written, one at a time.
    """
    interleaved: dict[int, gs.Constant] = edit.once(dict)
    found = expert_block(node, "gather_mm", _is_plain, why)
    block = None if found is None else _block(found, why)
    if block is None:
        return False
    # Blocks that share experts share the rearranged weight too.
    if id(block.up) not in interleaved:
        interleaved[id(block.up)] = _in_turns(edit, block.up)
    tokens = rows_of_tokens(edit, block.found, int(block.down.shape[1]))
    inputs = [tokens, block.logits, interleaved[id(block.up)], gs.Variable.empty(), block.down]
    edit.become(
        node,
        "MoE",
        inputs,
        domain=CONTRIB_DOMAIN,
        k=block.found.chosen,
        activation_type="swiglu",
        # 1: gate and up are one product with interleaved rows.
        swiglu_fusion=1,
        normalize_routing_weights=int(block.is_normalized),
    )
    return True


def _block(found: ExpertBlock, why: Why) -> _Block | None:
    """Return the block if onnxruntime's op is equivalent."""
    routed = softmax_routing(found)
    if routed is None:
        why("the experts are not chosen by a Softmax and a TopK", found.total)
        return None
    logits, is_normalized = routed
    up, down = found.up.inputs[1], found.down.inputs[1]
    if not isinstance(up, gs.Constant) or not isinstance(down, gs.Constant):
        why("the weights are not constant", found.total)
        return None
    if not found.is_float32(up, down, logits):
        why("the dtype is not float32", found.total)
        return None
    sizes = _sizes(up, down)
    if sizes is None or not found.chosen or found.count is None:
        why("the sizes are not known", found.total)
        return None
    if not found.is_laid_out(*sizes):
        why("the products are not of one matrix per token and expert", found.total)
        return None
    return _Block(found, logits, is_normalized, up, down)


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


def _in_turns(edit: Edit, up: gs.Constant) -> gs.Constant:
    """Return gate and up weights with their rows interleaved."""
    experts, rows, lanes = (int(size) for size in up.shape)
    name = context_of(edit.graph).names.claim(f"{up.name}.in_turns")
    return lazy_constant(name, in_turns, [up], [experts, rows, lanes])
