"""Replaces embedding_nbits with onnxruntime's GatherBlockQuantized."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.contrib.few_bits import (
    codes_in_rows,
    obstacle_in_codes,
    optional_parts,
    packed_zeros,
    scales_in,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    dtype_of,
    input_of,
)
from coreai_onnx.passes.engine.why import Why

_OPTIONAL = (3, 4, 5, 6, 7, 8)
_LIKE = 9
_BITS = (8, 4, 2)
# GatherBlockQuantized takes blocks of 16 or more, in powers of two.
_SMALLEST_BLOCK = 16
_DTYPES = (np.dtype(np.float32), np.dtype(np.float16))
_INDICES = (np.dtype(np.int64), np.dtype(np.int32))


@rewrites(composites=("embedding_nbits",))
def contrib_embedding_nbits(edit: Edit, node: gs.Node, why: Why) -> bool:
    """embedding_nbits → GatherBlockQuantized.

    embedding_nbits(scales, codes:uint8[n, k / 32, 16], indices, zeros) → y
    becomes     com.microsoft::GatherBlockQuantized(codes:uint8[n, k / 2], indices, scales, z) → y

    Also in a function that gets the table as an argument. Zero points are packed like the codes.
    Scales of float16 beside `like` of float32 are cast.
    """
    scales, codes, indices = node.inputs[:3]
    bits, group = attribute_of(node, "bits", 4), attribute_of(node, "group_size", 32)
    zeros, reason = optional_parts(node, _OPTIONAL)
    if reason:
        return why(reason, node)
    if bits not in _BITS:
        return why(f"the op does not support {bits}-bit codes", node)
    if group < _SMALLEST_BLOCK or group & (group - 1):
        return why("the op does not support this block size", node)
    like = input_of(node, _LIKE)
    dtype = dtype_of(scales if like is None else like)
    if dtype not in _DTYPES or dtype_of(indices) not in _INDICES:
        return why("the op does not support these dtypes", node)
    if reason := obstacle_in_codes(edit.graph, codes, zeros, bits):
        return why(reason, node)
    if dtype != dtype_of(scales) and dtype_of(scales) != np.dtype(np.float16):
        return why("the scales are not exact in the dtype of the rows", node)
    inputs = [codes_in_rows(edit, node, codes), indices, scales_in(edit, node, scales, dtype)]
    if zeros is not None:
        inputs.append(packed_zeros(edit, node, zeros, bits, f"{codes.name}.zero_points"))
    attributes = {"bits": bits, "block_size": group, "gather_axis": 0, "quantize_axis": 1}
    edit.become(node, "GatherBlockQuantized", inputs, domain=CONTRIB_DOMAIN, **attributes)
    return True
