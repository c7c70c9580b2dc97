"""Nodes in the form for which execution providers have kernels (`targets/coverage.py`)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.analysis.affine import AffineTensor
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import constant_of, dtype_of, shape_of
from coreai_onnx.passes.engine.why import Why

_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_INT32 = np.iinfo(np.int32)


@rewrites("CastLike")
def casts_of_dtypes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """CastLike of a known dtype → Cast: a provider computes the other operand only for its dtype.

    CastLike(x, y:f16)     becomes     Cast(x, to=f16)
    """
    dtype = dtype_of(node.inputs[1])
    if dtype is None:
        return why("a dtype is not known", node)
    edit.become(node, "Cast", node.inputs[:1], to=int(ir.DataType.from_numpy(dtype)))
    return True


@rewrites("Sum")
def sums_of_two(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Sum of two → Add, for which WebGPU has a kernel.

    Sum(x, y)     becomes     Add(x, y)
    """
    if len(node.inputs) != 2:
        return False
    edit.become(node, "Add", list(node.inputs))
    return True


@rewrites("Add", "Sub", *_COMPARISONS)
def positions_in_int32(edit: Edit, node: gs.Node, why: Why) -> bool:
    """A matrix of positions in int64 → in int32, for which WebGPU has kernels.

    LessOrEqual(i:int64[s, 1], j:int64[1, s])
    becomes     LessOrEqual(Cast(i, to=int32), Cast(j, to=int32))

    Only where the operands are positions or sizes, which fit into int32. Vectors stay as they are:
    onnxruntime keeps the arithmetic of sizes on the CPU.
    """
    if any(dtype_of(tensor) != np.dtype(np.int64) for tensor in node.inputs):
        return False
    if not _grows(node):
        return False
    positions = edit.once(AffineAnalysis)
    if not all(isinstance(positions.of(tensor), AffineTensor) for tensor in node.inputs):
        return why("the operands may not fit into int32", node)
    for index, tensor in enumerate(list(node.inputs)):
        set_input(node, index, _narrow(edit, node, tensor))
    if node.op not in _COMPARISONS:
        # Its readers get int64; the Cast goes where they are computed in int32 as well.
        shape = shape_of(node.outputs[0])
        narrow = edit.add(node.op, node, list(node.inputs), np.dtype(np.int32), shape)
        edit.become(node, "Cast", [narrow], to=int(ir.DataType.INT64))
    return True


def _grows(node: gs.Node) -> bool:
    """Return whether the result has more elements than any operand: a matrix of two vectors."""
    shapes = [shape_of(tensor) for tensor in (*node.inputs, *node.outputs)]
    *operands, result = shapes
    return result is None or (len(result) > 1 and result not in operands)


def _narrow(edit: Edit, node: gs.Node, tensor: gs.Tensor) -> gs.Tensor:
    values = constant_of(tensor)
    if values is not None and _INT32.min <= values.min(initial=0) <= values.max(initial=0) <= _INT32.max:
        return edit.constant(f"{tensor.name}_int32", values.astype(np.int32))
    shape = shape_of(tensor)
    return edit.add("Cast", node, [tensor], np.dtype(np.int32), shape, to=int(ir.DataType.INT32))

