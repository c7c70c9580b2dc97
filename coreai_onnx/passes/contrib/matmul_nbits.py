"""onnxruntime's MatMulNBits: the block sizes that it supports, and its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import CONTRIB_DOMAIN

BLOCKS = (256, 128, 64, 32, 16)
"""The block sizes that onnxruntime supports."""
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
