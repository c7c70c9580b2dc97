"""Turns products with weights of few bits into MatMulNBits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.model.packed_codes import pack_rows
from coreai_onnx.model.weight_formats import OPTIONAL
from coreai_onnx.passes.analysis.attention_bodies import constants_behind
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    dtype_of,
    input_of,
    shape_of,
    static_shape_of,
)
from coreai_onnx.passes.engine.why import Why

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
    constants = constants_behind(graph, zeros)
    if constants is None or not all(_are_codes(one, bits) for one in constants):
        return "zero points must be integers that fit into the bits of a code"
    return ""


def optional_parts(call: gs.Node, places: Sequence[int]) -> tuple[gs.Tensor | None, str]:
    """Return the zero points of a call, and why onnxruntime's ops cannot read another part.

    Args:
        call: The call.
        places: The places of the optional parts of the weight in its inputs.
    """
    parts = {name: input_of(call, place) for name, place in zip(OPTIONAL, places, strict=True)}
    zeros = parts.pop("zero_points")
    unread = next((name for name, part in parts.items() if part is not None), "")
    return zeros, f"the op does not support a {unread}" if unread else ""


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
    wide = edit.add("Cast", call, [zeros], to=int(ir.DataType.INT32))
    # Each row begins at a whole byte, so the last byte of the one before is filled with zeros.
    if groups % per:
        ends = edit.constant("ends", np.array([0, 0, 0, -groups % per], np.int64))
        wide = edit.add("Pad", call, [wide, ends])
    split = edit.constant("split", np.array([rows, -1, per], np.int64))
    units = edit.add("Reshape", call, [wide, split])
    places = edit.constant("places", np.array([1 << bits * i for i in range(per)], np.int32))
    # Codes are below 1 << bits, so their sum at these places is a bitwise or.
    sums = edit.add("MatMul", call, [units, places])
    shape = [rows, -(-groups // per)]
    return edit.add("Cast", call, [sums], np.dtype(np.uint8), shape, to=int(ir.DataType.UINT8))


def scales_in(edit: Edit, call: gs.Node, scales: gs.Tensor, dtype: np.dtype) -> gs.Tensor:
    """Return scales in a dtype: the file has them as they are, onnxruntime casts them once."""
    if dtype_of(scales) == dtype:
        return scales
    to = int(ir.DataType.from_numpy(dtype))
    return edit.add("Cast", call, [scales], dtype, static_shape_of(scales), to=to)


def codes_in_rows(edit: Edit, call: gs.Node, codes: gs.Tensor) -> gs.Tensor:
    """Return codes ``[rows, groups, bytes]`` as ``[rows, groups * bytes]``.

    Constants that something else reads are reshaped by a node, so that the file has them once.
    """
    rows, groups, size = static_shape_of(codes) or (0, 0, 0)
    shape = [rows, groups * size]
    if isinstance(codes, gs.Constant) and len(codes.outputs) == 1:
        return edit.lazy(f"{codes.name}.rows", lambda x: x.reshape(shape), [codes], shape)
    target = edit.constant("rows", np.array(shape, np.int64))
    return edit.add("Reshape", call, [codes, target], np.dtype(np.uint8), shape)


def _are_codes(zeros: gs.Constant, bits: int) -> bool:
    """Whether zero points are codes, one per byte."""
    if np.dtype(zeros.dtype) != np.dtype(np.uint8):
        return False
    values = np.asarray(zeros.values)
    return not values.size or int(values.max()) < 1 << bits


_OPTIONAL = (3, 4, 6, 7, 8, 9)
_BIAS_OF_CALL = 5
_ROUNDED_LEVEL = 4
"""The accuracy level at which onnxruntime rounds activations to 8 bits, in blocks."""
_PLAIN_BITS = (4,)
"""Sizes of codes for which onnxruntime is fast with activations as they are (measured)."""
_ROUNDED_BITS = (8, 4)
"""The same with rounded activations."""


@rewrites(composites=("linear_nbits",))
def contrib_linear_nbits(edit: Edit, node: gs.Node, why: Why) -> bool:
    """linear_nbits → MatMulNBits, if onnxruntime is fast with that number of bits.

    linear_nbits<activation_bits = 8>(x, codes, scales, zeros, , bias) → y
    becomes     com.microsoft::MatMulNBits<accuracy_level = 4>(x, codes, scales, zeros, , bias) → y

    Also in a function that gets the weight as an argument. Codes have the same layout in both; zero
    points are packed. Scales that are not float32 stay as they are in the file, before a Cast that
    onnxruntime computes when it loads it.
    """
    return _rewritten(edit, node, why, (_SINGLE,))


@rewrites(composites=("linear_nbits",))
def device_linear_nbits(edit: Edit, node: gs.Node, why: Why) -> bool:
    """As contrib_linear_nbits → the op as GPUs have it: in float16 too.

    linear_nbits(x, codes, scales, zeros, , bias) → y
    becomes     com.microsoft::MatMulNBits(x, codes, scales, zeros, , bias) → y
    """
    return _rewritten(edit, node, why, (_SINGLE, np.dtype(np.float16)))


def _rewritten(edit: Edit, node: gs.Node, why: Why, dtypes: Sequence[np.dtype]) -> bool:
    bits = int(attribute_of(node, "bits", 4))
    group = int(attribute_of(node, "group_size", 32))
    is_rounded = attribute_of(node, "activation_bits", 0) == _BYTE
    codes, scales = node.inputs[1:3]
    zeros, reason = optional_parts(node, _OPTIONAL)
    if (dtype := dtype_of(node.inputs[0])) is None or dtype not in dtypes:
        return why(f"the dtype is not {' or '.join(map(str, dtypes))}", node)
    if len(shape_of(node.inputs[0]) or ()) < 2:
        return why("the input is not known to be a matrix", node)
    if reason:
        return why(reason, node)
    if bits not in (_ROUNDED_BITS if is_rounded else _PLAIN_BITS):
        return why(f"onnxruntime dequantizes {bits}-bit weights at each run", node)
    if group not in BLOCKS:
        return why("onnxruntime does not support this block size", node)
    if reason := obstacle_in_codes(edit.graph, codes, zeros, bits):
        return why(reason, node)
    outputs, groups, _ = static_shape_of(codes) or (0, 0, 0)
    inputs = [node.inputs[0], codes, scales_in(edit, node, scales, dtype)]
    if zeros is not None:
        inputs.append(packed_zeros(edit, node, zeros, bits, f"{codes.name}.zero_points"))
    # Without the attribute, onnxruntime leaves the activations in float32.
    level = {"accuracy_level": _ROUNDED_LEVEL} if is_rounded else {}
    sizes = {"K": groups * group, "N": outputs, "bits": bits, "block_size": group}
    become_matmul_nbits(edit, node, inputs, input_of(node, _BIAS_OF_CALL), sizes | level)
    return True


BLOCKS = (256, 128, 64, 32, 16)
"""The block sizes that onnxruntime supports."""
# The place of the bias, after g_idx, which reorders columns and is absent here.
_BIAS = 5


def become_matmul_nbits(
    edit: Edit,
    node: gs.Node,
    tensors: Sequence[gs.Tensor],
    bias: gs.Tensor | None,
    attributes: Mapping[str, int],
) -> None:
    """Turn a node into the op.

    Args:
        edit: The edit of the graph.
        node: The node.
        tensors: The activations, the packed codes, the scales and, if there are any, the packed
            zero points.
        bias: What is added to each row of the product.
        attributes: Those of the op: ``K`` columns and ``N`` rows of the weight, ``bits`` of a code,
            ``block_size`` columns that share a scale, and others.
    """
    inputs = list(tensors)
    if bias is not None:
        inputs += [*(gs.Variable.empty() for _ in range(_BIAS - len(inputs))), bias]
    edit.become(node, "MatMulNBits", inputs, domain=CONTRIB_DOMAIN, **attributes)
