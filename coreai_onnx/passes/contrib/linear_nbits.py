"""Turns products with weights of few bits into MatMulNBits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coreai_onnx.model.weight_formats import PARTS
from coreai_onnx.passes.contrib.few_bit_codes import (
    float32_scales,
    obstacle_in_codes,
    optional_parts,
    packed_zeros,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    CONTRIB_DOMAIN,
    attribute_of,
    composite,
    dtype_of,
    input_of,
    shape_of,
    static_shape_of,
)
from coreai_onnx.passes.engine.why import Why

_ROUNDED_LEVEL = 4
"""The accuracy level at which onnxruntime rounds activations to 8 bits, in blocks."""
_PLAIN_BITS = (4,)
"""Sizes of codes for which onnxruntime is fast with activations as they are (measured)."""
_ROUNDED_BITS = (8, 4)
"""The same with rounded activations."""
_OPTIONAL = 3
_BYTE = 8


@dataclass(frozen=True)
class _FewBitsCall:
    """A call of the composite that the op can do.

    Attributes:
        node: The call.
        zeros: Its zero points.
        bits: Size of a code.
        group: Size of a group.
        rounded: Whether activations are rounded.
    """

    node: gs.Node
    zeros: gs.Tensor | None
    bits: int
    group: int
    rounded: bool


def contrib_linear_nbits(graph: gs.Graph, why: Why) -> int:
    """linear_nbits → MatMulNBits, if onnxruntime is fast with that number of bits.

    linear_nbits<activation_bits = 8>(x, codes, scales, zeros, , bias) → y
    becomes     com.microsoft::MatMulNBits<accuracy_level = 4>(x, codes, scales, zeros, , bias) → y

    Also in a function that gets the weight as an argument. Codes have the same layout in both; zero
    points are packed. Scales that are not float32 stay as they are in the file, before a Cast that
    onnxruntime computes when it loads it.
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if composite(node, "linear_nbits") is None:
            continue
        call = _call(graph, node)
        if isinstance(call, str):
            why(call, node)
            continue
        _write(edit, call)
        count += 1
    edit.finish()
    return count


def _call(graph: gs.Graph, node: gs.Node) -> _FewBitsCall | str:
    """Return what a call computes, or why the op cannot."""
    bits = int(attribute_of(node, "bits", 4))
    group = int(attribute_of(node, "group_size", 32))
    rounded = attribute_of(node, "activation_bits", 0) == _BYTE
    if dtype_of(node.inputs[0]) != np.dtype(np.float32):
        return "the dtype is not float32"
    if len(shape_of(node.inputs[0]) or ()) < 2:
        return "the input is not known to be a matrix"
    zeros, reason = optional_parts(node, _OPTIONAL)
    if reason:
        return reason
    if bits not in (_ROUNDED_BITS if rounded else _PLAIN_BITS):
        return f"onnxruntime dequantizes {bits}-bit weights at each run"
    if group not in BLOCKS:
        return "onnxruntime has no blocks of that size"
    reason = obstacle_in_codes(graph, node.inputs[1], zeros, bits)
    return reason or _FewBitsCall(node, zeros, bits, group, rounded)


def _write(edit: Edit, call: _FewBitsCall) -> None:
    node, zeros, bias = call.node, call.zeros, input_of(call.node, 1 + len(PARTS))
    codes, scales = node.inputs[1:3]
    outputs, groups, _ = static_shape_of(codes) or (0, 0, 0)
    inputs = [node.inputs[0], codes, float32_scales(edit, node, scales)]
    if zeros is not None:
        inputs.append(packed_zeros(edit, node, zeros, call.bits, f"{codes.name}.zero_points"))
    # Without the attribute, onnxruntime leaves the activations in float32.
    level = {"accuracy_level": _ROUNDED_LEVEL} if call.rounded else {}
    sizes = Sizes(groups * call.group, outputs, call.bits, call.group)
    become_matmul_nbits(edit, node, inputs, bias, sizes, **level)


BLOCKS = (256, 128, 64, 32, 16)
"""The block sizes that onnxruntime supports."""
# The place of the bias, after g_idx, which reorders columns and is absent here.
_BIAS = 5


class Sizes(NamedTuple):
    """The sizes of a weight.

    Attributes:
        inputs: Number of columns.
        outputs: Number of rows.
        bits: Size of a code.
        block: Number of columns that share a scale.
    """

    inputs: int
    outputs: int
    bits: int
    block: int


def become_matmul_nbits(
    edit: Edit,
    node: gs.Node,
    tensors: Sequence[gs.Tensor],
    bias: gs.Tensor | None,
    sizes: Sizes,
    **attributes: int,
) -> None:
    """Turn a node into the op.

    Args:
        edit: The edit of the graph.
        node: The node.
        tensors: The activations, the packed codes, the scales and, if there are any, the packed
            zero points.
        bias: What is added to each row of the product.
        sizes: The sizes of the weight.
        **attributes: Further attributes.
    """
    inputs = list(tensors)
    if bias is not None:
        inputs += [*(gs.Variable.empty() for _ in range(_BIAS - len(inputs))), bias]
    edit.become(
        node,
        "MatMulNBits",
        inputs,
        domain=CONTRIB_DOMAIN,
        K=sizes.inputs,
        N=sizes.outputs,
        bits=sizes.bits,
        block_size=sizes.block,
        **attributes,
    )
