"""Fuses attention with the computation of its keys and values from codes of few bits."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.attention_bodies import NAME as ATTENTION
from coreai_onnx.passes.analysis.attention_bodies import provide_variant
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    constant_of,
    dtype_of,
    made_by,
    scalar_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

NAME = "attention_nbits"
_MASK = 3
_MATRIX = 1024 * 1024
"""The elements of a rotation at most: no model has larger heads."""
_BYTE = np.dtype(np.uint8)
_ZEROS = {128.0: 8, 8.0: 4}
"""The bits of a code, by the code that stands for 0."""


@makes_functions
@rewrites(composites=(ATTENTION,))
def fuse_attention_nbits(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Attention to keys and values of a cache of few bits → one ai.coreai::attention_nbits.

    Mul(Sub(Cast(codes:uint8[b, h, s, d]), 128), scales:[b, h, s, 1]) → keys, the same for values,
    attention(q, keys, values, mask)
    becomes     attention_nbits(q, key_codes, key_scales, value_codes, value_scales, mask)

    Also if two codes of 4 bits are in a byte: Concat(BitwiseAnd(bytes, 15), BitShift(bytes, 4)) are
    the codes. Our kernel reads the codes where they are; the body computes the values as before.

    Keys and values may be products with symmetric constant matrices R and S, by which they were
    rotated before they were rounded. Then queries and results are multiplied instead, whose number
    does not grow with the cache:

    attention(q, MatMul(keys, R), MatMul(values, S))
    becomes     MatMul(attention_nbits(MatMul(q, R), keys, values), S)
    """
    rotations = [_rotation(tensor) for tensor in node.inputs[1:3]]
    keys, values = (
        _codes(tensor if one is None else one.inputs[0])
        for tensor, one in zip(node.inputs[1:3], rotations, strict=True)
    )
    if keys is None or values is None or keys[2] != values[2]:
        return False
    if attribute_of(node, "causal_alignment", "lower_right") != "lower_right":
        return why("the queries are not the last tokens", node)
    names = ("is_causal", "window_size", "softcap")
    attributes = {name: attribute_of(node, name, 0) for name in names}
    value_heads = (shape_of(keys[0]) or ())[1:2] != (shape_of(values[0]) or ())[1:2]
    further = ["bits4"] if keys[2] == _ZEROS[8.0] else []
    op_type = provide_variant(bodies, NAME, node, *further, value_heads=value_heads)
    if op_type is None:
        return why("the model's attention_nbits has another body", node)
    query, output = node.inputs[0], node.outputs[0]
    if rotations[0] is not None:
        matrix = rotations[0].inputs[1]
        query = edit.add("MatMul", node, [query, matrix], query.dtype, shape_of(query))
    inputs = [query, *keys[:2], *values[:2], *node.inputs[_MASK:]]
    scale = {"scale": node.attrs["scale"]} if "scale" in node.attrs else {}
    written = {**attributes, "softcap": float(attributes["softcap"]), **scale}
    attrs = {**written, "causal_alignment": "lower_right", "bits": keys[2], "version": 1}
    if rotations[1] is None:
        edit.become(node, op_type, inputs, domain=STANDARD_DOMAIN, **attrs)
        return True
    result = edit.add(
        op_type, node, inputs, output.dtype, shape_of(output), domain=STANDARD_DOMAIN, **attrs
    )
    edit.become(node, "MatMul", [result, rotations[1].inputs[1]])
    return True


def _rotation(tensor: gs.Tensor) -> gs.Node | None:
    """Return the product with a symmetric constant matrix that computes a tensor."""
    product = made_by(tensor, "MatMul")
    matrix = None if product is None else constant_of(product.inputs[1], at_most=_MATRIX)
    if product is None or matrix is None:
        return None
    return product if np.array_equal(matrix, matrix.T) else None


def _codes(tensor: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor, int] | None:
    """Return the codes of keys or values, their scales, and the size of a code."""
    product = made_by(tensor, "Mul")
    if product is None:
        return None
    difference = made_by(product.inputs[0], "Sub")
    cast = None if difference is None else made_by(difference.inputs[0], "Cast")
    if difference is None or cast is None or dtype_of(cast.inputs[0]) != _BYTE:
        return None
    codes, scales = cast.inputs[0], product.inputs[1]
    bits = _ZEROS.get(float(scalar_of(difference.inputs[1]) or 0.0))
    dims, rows = shape_of(codes), shape_of(scales)
    if bits is None or dims is None or rows is None or len(dims) != len(rows) or rows[-1] != 1:
        return None
    if dims[:-1] != rows[:-1] or dtype_of(scales) != dtype_of(tensor):
        return None
    if bits == _ZEROS[8.0]:
        return None if (halves := _halves(codes)) is None else (halves, scales, bits)
    return codes, scales, bits


def _halves(codes: gs.Tensor) -> gs.Tensor | None:
    """Return the bytes whose lower and upper halves are the codes."""
    joined = made_by(codes, "Concat")
    if joined is None or len(joined.inputs) != 2 or attribute_of(joined, "axis", 0) not in (-1, 3):
        return None
    lower = made_by(joined.inputs[0], "BitwiseAnd")
    upper = made_by(joined.inputs[1], "BitShift")
    if lower is None or upper is None or lower.inputs[0] is not upper.inputs[0]:
        return None
    is_right = attribute_of(upper, "direction", "") == "RIGHT"
    constants = scalar_of(lower.inputs[1]), scalar_of(upper.inputs[1])
    return lower.inputs[0] if is_right and constants == (15, 4) else None
