"""The parts of calls of linear_nbits and embedding_nbits in the form of onnxruntime's ops."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.packed_codes import pack_rows
from coreai_onnx.model.weight_formats import OPTIONAL
from coreai_onnx.passes.analysis.attention_bodies import constants_behind
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import lazy_constant
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import dtype_of, input_of, static_shape_of

_BYTE = 8
_SINGLE = np.dtype(np.float32)


def obstacle_in_codes(graph: gs.Graph, codes: gs.Tensor, zeros: gs.Tensor | None, bits: int) -> str:
    """Return why onnxruntime's ops cannot read codes and zero points; empty if they can.

    Args:
        graph: The graph of the call, perhaps the body of a function that gets them as arguments.
        codes: The packed codes.
        zeros: The zero points, one per byte; None for the default.
        bits: Size of a code.
    """
    if static_shape_of(codes) is None or constants_behind(graph, codes) is None:
        return "the weight is not constant"
    if zeros is None:
        return ""
    found = constants_behind(graph, zeros)
    if found is None or not all(_are_codes(one, bits) for one in found):
        return "zero points must be integers that fit into the bits of a code"
    return ""


def optional_parts(call: gs.Node, first: int) -> tuple[gs.Tensor | None, str]:
    """Return the zero points of a call, and why onnxruntime's ops cannot read another part.

    Args:
        call: The call.
        first: The place of the first optional part of the weight in its inputs.
    """
    parts = {name: input_of(call, first + place) for place, name in enumerate(OPTIONAL)}
    zeros = parts.pop("zero_points")
    return zeros, next((f"the op has no {n}" for n, one in parts.items() if one is not None), "")


def packed_zeros(edit: Edit, call: gs.Node, zeros: gs.Tensor, bits: int, name: str) -> gs.Tensor:
    """Return zero points ``[rows, groups]``, one per byte, in ``bits`` each.

    Those of a function are packed by ops, which onnxruntime computes when it loads the file.

    Args:
        edit: The edit of the graph.
        call: The node that reads them.
        zeros: Constants, or an input of a function that is constant in all calls.
        bits: Size of a code.
        name: The name of a new constant.
    """
    if isinstance(zeros, gs.Constant):
        return edit.constant(name, pack_rows(np.asarray(zeros.values), bits))
    rows, groups = static_shape_of(zeros) or (0, 0)
    per = _BYTE // bits
    if per == 1:
        return zeros
    # onnxruntime has no MatMul of uint8 on a CPU.
    wide = edit.node("Cast", call, [zeros], to=int(ir.DataType.INT32)).outputs[0]
    # Each row begins at a whole byte, so the last byte of the one before is filled with zeros.
    if groups % per:
        ends = edit.constant("ends", np.array([0, 0, 0, -groups % per], np.int64))
        wide = edit.node("Pad", call, [wide, ends]).outputs[0]
    split = edit.constant("split", np.array([rows, -1, per], np.int64))
    units = edit.node("Reshape", call, [wide, split]).outputs[0]
    places = edit.constant("places", np.array([1 << bits * i for i in range(per)], np.int32))
    # Codes are below 1 << bits, so their sum at these places is a bitwise or.
    sums = edit.node("MatMul", call, [units, places]).outputs[0]
    packed = edit.node("Cast", call, [sums], to=int(ir.DataType.UINT8)).outputs[0]
    return _typed(packed, np.dtype(np.uint8), [rows, -(-groups // per)])


def float32_scales(edit: Edit, call: gs.Node, scales: gs.Tensor) -> gs.Tensor:
    """Return scales in float32: the file has them as they are, onnxruntime casts them once."""
    if dtype_of(scales) == _SINGLE:
        return scales
    single = edit.node("Cast", call, [scales], to=int(ir.DataType.FLOAT)).outputs[0]
    return _typed(single, _SINGLE, static_shape_of(scales))


def codes_in_rows(edit: Edit, call: gs.Node, codes: gs.Tensor) -> gs.Tensor:
    """Return codes ``[rows, groups, bytes]`` as ``[rows, groups * bytes]``.

    Constants that something else reads are reshaped by a node, so that the file has them once.
    """
    rows, groups, size = static_shape_of(codes) or (0, 0, 0)
    shape = [rows, groups * size]
    if isinstance(codes, gs.Constant) and len(codes.outputs) == 1:
        name = context_of(edit.graph).names.claim(f"{codes.name}.rows")
        return lazy_constant(name, lambda x: x.reshape(shape), [codes], shape)
    target = edit.constant("rows", np.array(shape, np.int64))
    flat = edit.node("Reshape", call, [codes, target]).outputs[0]
    return _typed(flat, np.dtype(np.uint8), shape)


def _typed(
    tensor: gs.Tensor, dtype: np.dtype, shape: list[int] | tuple[int, ...] | None
) -> gs.Tensor:
    tensor.dtype, tensor.shape = dtype, None if shape is None else list(shape)
    return tensor


def _are_codes(zeros: gs.Constant, bits: int) -> bool:
    """Whether zero points are codes, one per byte."""
    if np.dtype(zeros.dtype) != np.dtype(np.uint8):
        return False
    values = np.asarray(zeros.values)
    return not values.size or int(values.max()) < 1 << bits
