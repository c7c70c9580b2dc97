"""Replaces embedding_nbits with onnxruntime's GatherBlockQuantized."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.contrib.few_bit_codes import (
    codes_in_rows,
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
)
from coreai_onnx.passes.engine.why import Why

_OPTIONAL = 3
_BITS = (8, 4, 2)
# GatherBlockQuantized takes blocks of 16 or more, in powers of two.
_SMALLEST_BLOCK = 16
_DTYPES = (np.dtype(np.float32), np.dtype(np.float16))
_INDICES = (np.dtype(np.int64), np.dtype(np.int32))


def contrib_embedding_nbits(graph: gs.Graph, why: Why) -> int:
    """embedding_nbits → GatherBlockQuantized.

    embedding_nbits(scales, codes:uint8[n, k / 32, 16], indices, zeros) → y
    becomes     com.microsoft::GatherBlockQuantized(codes:uint8[n, k / 2], indices, scales, z) → y

    Also in a function that gets the table as an argument. Zero points are packed like the codes.
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if composite(node, "embedding_nbits") is None:
            continue
        if reason := _obstacle(graph, node):
            why(reason, node)
            continue
        _write(edit, node)
        count += 1
    edit.finish()
    return count


def _obstacle(graph: gs.Graph, node: gs.Node) -> str:
    """Return why the op cannot compute a call; empty if it can."""
    scales, codes, indices = node.inputs[:3]
    bits, group = _sizes(node)
    zeros, reason = optional_parts(node, _OPTIONAL)
    if reason:
        return reason
    if bits not in _BITS:
        return f"the op has no {bits}-bit codes"
    if group < _SMALLEST_BLOCK or group & (group - 1):
        return "the op has no blocks of that size"
    if dtype_of(scales) not in _DTYPES or dtype_of(indices) not in _INDICES:
        return "the op has no such dtype"
    return obstacle_in_codes(graph, codes, zeros, bits)


def _sizes(node: gs.Node) -> tuple[int, int]:
    """Return the bits of a code, and the size of a group."""
    return int(attribute_of(node, "bits", 4)), int(attribute_of(node, "group_size", 32))


def _write(edit: Edit, node: gs.Node) -> None:
    scales, codes, indices = node.inputs[:3]
    (zeros, _), (bits, group) = optional_parts(node, _OPTIONAL), _sizes(node)
    inputs = [codes_in_rows(edit, node, codes), indices, scales]
    if zeros is not None:
        inputs.append(packed_zeros(edit, node, zeros, bits, f"{codes.name}.zero_points"))
    edit.become(
        node,
        "GatherBlockQuantized",
        inputs,
        domain=CONTRIB_DOMAIN,
        bits=bits,
        block_size=group,
        gather_axis=0,
        quantize_axis=1,
    )
