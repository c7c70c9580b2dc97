"""Replaces mixtures of experts with few-bit weights with onnxruntime's QMoE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.model.packed_codes import pack_rows
from coreai_onnx.passes.contrib.few_bits import BLOCKS, optional_parts
from coreai_onnx.passes.contrib.moe import (
    ExpertBlock,
    expert_block,
    in_turns,
    rows_of_tokens,
    softmax_routing,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    behind_views,
    constant_of,
    is_standard,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_LEVELS = {(4, 0): 0, (2, 0): 0, (4, 8): 4, (8, 8): 0}
"""The accuracy level by bits of codes and of activations, for what onnxruntime computes exactly.

It rounds the activations of 8-bit weights at every level, and those of 2-bit weights in rows of a
multiple of 64 values, unless groups have 16 (measured with 1.31).
"""
_TWO, _ROUNDED_ROWS, _EXACT_GROUP = 2, 64, 16
_OPTIONAL = (4, 5, 6, 7, 8, 9)
_UP, _DOWN, _WEIGHTS = (2, 3, 11), (5, 6, 12), 14
"""The places of codes, scales and zero points of both products, and of the weights of the sum."""


@dataclass(frozen=True)
class _Weight:
    """The few-bit matrices of a product, as the op can read them.

    Attributes:
        codes: uint8, ``[experts, rows, groups, bytes]``.
        scales: ``[experts, rows, groups]``.
        zeros: uint8, the same; None for the default.
        bits: Size of a code.
        group: Size of a group.
        rounding: Bits of the activations, 0 if they are not rounded.
    """

    codes: gs.Constant
    scales: gs.Constant
    zeros: np.ndarray | None
    bits: int
    group: int
    rounding: int

    @property
    def kind(self) -> tuple[int, int, int, bool]:
        """What both products of a block must have in common."""
        return self.bits, self.group, self.rounding, self.zeros is not None

    @property
    def shape(self) -> tuple[int, int, int]:
        experts, rows, groups = (int(dim) for dim in self.codes.shape[:3])
        return experts, rows, groups * self.group


@rewrites("ReduceSum")
def contrib_qmoe(edit: Edit, node: gs.Node, why: Why) -> bool:
    """TopK, two gather_mm_nbits around a swiglu, and their weighted sum → one QMoE.

    w, e ←TopK; x ─gather_mm_nbits(e)→ ─Split→ ─swiglu→ ─gather_mm_nbits(e)→ ─Mul(w)→ ─Sum→ y
    becomes     com.microsoft::QMoE(x, r, gate_up, scales, , down, scales, …, w) → y

    The op selects experts itself. If the router is a normalized Softmax, it gets the logits r;
    otherwise r is 1 for the experts that the model has selected and 0 for the others, and w are the
    weights of the sum. onnxruntime expects the rows of gate and up weights interleaved. The
    weights are rearranged when the model is written, one at a time.
    """
    block = expert_block(node, "gather_mm_nbits", _is_plain, why)
    if block is None:
        return False
    up, down = _weight(block.up), _weight(block.down)
    if isinstance(up, str):
        return why(up, node)
    if isinstance(down, str):
        return why(down, node)
    if reason := _obstacle(block, up, down):
        return why(reason, node)
    _write(edit, block, up, down)
    return True


def _is_plain(call: gs.Node) -> bool:
    """Whether a weight has only parts that the op can read."""
    return not optional_parts(call, _OPTIONAL)[1]


def _weight(call: gs.Node) -> _Weight | str:
    """Return the weight of a product, or why the op cannot read it."""
    codes, scales, point = call.inputs[1], call.inputs[2], optional_parts(call, _OPTIONAL)[0]
    if not isinstance(codes, gs.Constant) or not isinstance(scales, gs.Constant):
        return "the weights are not constant"
    bits = int(attribute_of(call, "bits", 4))
    group = int(attribute_of(call, "group_size", 32))
    rounding = int(attribute_of(call, "activation_bits", 0))
    if (bits, rounding) not in _LEVELS:
        return f"onnxruntime has no exact product with {bits}-bit experts"
    if group not in BLOCKS:
        return "onnxruntime does not support this block size"
    zeros, columns = None if point is None else constant_of(point), int(codes.shape[2]) * group
    if bits == _TWO and group != _EXACT_GROUP and columns % _ROUNDED_ROWS == 0:
        return f"onnxruntime rounds the activations of 2-bit rows of {columns} values"
    if point is not None and (zeros is None or zeros.dtype != np.uint8 or zeros.max() >= 1 << bits):
        return "zero points must be integers that fit into the bits of a code"
    return _Weight(codes, scales, zeros, bits, group, rounding)


def _obstacle(block: ExpertBlock, up: _Weight, down: _Weight) -> str:
    # The op has one bits, block_size and accuracy_level for both products.
    if up.kind != down.kind:
        return "the products have weights of different kinds"
    if not block.is_float32(block.tokens, block.weights):
        return "the dtype is not float32"
    experts, lanes, hidden = down.shape
    if not block.chosen or up.shape != (experts, 2 * hidden, lanes):
        return "the sizes are not known"
    if not block.is_laid_out(lanes, hidden):
        return "the products must have one matrix per token and expert"
    # The tables have one place for each expert, and TopK never selects an expert twice.
    top = maker(block.experts)
    if top is None or not is_standard(top, "TopK") or top.outputs[1] is not block.experts:
        return "the experts of a token may be equal"
    if attribute_of(top, "axis", -1) not in (-1, 1):
        return "the experts of a token may be equal"
    weights = shape_of(behind_views(block.weights))
    return "" if weights == shape_of(block.experts) else "the weights of the sum have other axes"


def _write(edit: Edit, block: ExpertBlock, up: _Weight, down: _Weight) -> None:
    experts, lanes, _ = down.shape
    tokens = rows_of_tokens(edit, block, lanes)
    ups, downs = _tensors(edit, up, is_turned=True), _tensors(edit, down, is_turned=False)
    routing = softmax_routing(block)
    is_normalized = routing is not None and routing[1]
    routed = (
        routing[:1]
        if routing is not None and is_normalized
        else _routing_tables(edit, block, experts)
    )
    # Logits are input 1. With tables, input 1 selects the experts and input 14 has their weights.
    places = (0, *_UP[: len(ups)], *_DOWN[: len(downs)], *(1, _WEIGHTS)[: len(routed)])
    tensors = dict(zip(places, (tokens, *ups, *downs, *routed), strict=True))
    inputs = [tensors.get(i, gs.Variable.empty()) for i in range(max(tensors) + 1)]
    level = _LEVELS[up.bits, up.rounding]
    edit.become(
        block.total,
        "QMoE",
        inputs,
        domain=CONTRIB_DOMAIN,
        k=block.chosen,
        activation_type="swiglu",
        # 1: gate and up are one product with interleaved rows.
        swiglu_fusion=1,
        normalize_routing_weights=int(is_normalized),
        expert_weight_bits=up.bits,
        block_size=up.group,
        **({"accuracy_level": level} if level else {}),
    )


def _tensors(edit: Edit, weight: _Weight, *, is_turned: bool) -> list[gs.Tensor]:
    """Return codes, scales and, if there are any, zero points as the op reads them."""
    experts, rows, columns = weight.shape
    groups, size = columns // weight.group, columns * weight.bits // 8

    def ordered(values: np.ndarray) -> np.ndarray:
        return in_turns(values) if is_turned else values

    def codes(values: np.ndarray) -> np.ndarray:
        return ordered(values.reshape(experts, rows, size))

    def scales(values: np.ndarray) -> np.ndarray:
        return ordered(values).astype(np.float32)

    source = weight.codes.name
    tensors: list[gs.Tensor] = [
        edit.lazy(f"{source}.rows", codes, [weight.codes], [experts, rows, size]),
        edit.lazy(
            f"{weight.scales.name}.float32",
            scales,
            [weight.scales],
            [experts, rows, groups],
            np.dtype(np.float32),
        ),
    ]
    if weight.zeros is not None:
        packed = pack_rows(ordered(weight.zeros).reshape(-1, groups), weight.bits)
        tensors.append(edit.constant(f"{source}.zero_points", packed.reshape(experts, rows, -1)))
    return tensors


def _routing_tables(edit: Edit, block: ExpertBlock, experts: int) -> tuple[gs.Tensor, gs.Tensor]:
    """Return ones for the selected experts, and their weights, ``[tokens, experts]``."""
    total, chosen = block.total, block.experts
    name = total.outputs[0].name
    zero, one = (
        edit.constant(f"{name}_{word}", np.array([value], np.float32))
        for word, value in (("zero", 0), ("one", 1))
    )
    width = edit.constant(f"{name}_experts", np.array([experts], np.int64))
    tokens = edit.add("Shape", total, [chosen], start=0, end=1)
    table = edit.add("Concat", total, [tokens, width], axis=0)
    zeros = edit.add("Expand", total, [zero, table])
    shape = edit.add("Shape", total, [chosen])
    ones = edit.add("Expand", total, [one, shape])
    weights = behind_views(block.weights)
    # The op selects the largest values, which are the ones: the experts that the model has chosen.
    selected, weighted = (
        edit.add("ScatterElements", total, [zeros, chosen, values], axis=1)
        for values in (ones, weights)
    )
    for value in (zeros, selected, weighted):
        value.dtype, value.shape = np.dtype(np.float32), [block.count, experts]
    return selected, weighted
