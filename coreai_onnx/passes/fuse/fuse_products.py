"""Rewrites products of float32 for our kernels: in one order, or by tiles."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.quantized_layers import obstacle, second_factor
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import dtype_of, input_of, shape_of
from coreai_onnx.passes.engine.why import Why

_FLOAT32 = np.dtype(np.float32)


@makes_functions
@rewrites("MatMul", "Gemm")
def fuse_products(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """MatMul or Gemm of float32 matrices → gather_mm, and the bias after it.

    MatMul(x[…, m, k], w[k, n]) → y
    becomes     gather_mm(x, w) → y

    The kernel sums a row in one order, whatever the number of rows. onnxruntime chooses an
    algorithm by the number of rows, the processor, and whether the second factor is constant.
    """
    return _fuse(edit, node, why, bodies, word="")


@makes_functions
@rewrites("MatMul", "Gemm")
def fuse_tiled_products(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """MatMul or Gemm of float32 and a constant matrix → gather_mm for tiles, and the bias after it.

    MatMul(x[…, m, k], w[k, n]) → y
    becomes     gather_mm.tiles(x, w) → y

    A session that does not multiply float32 by tiles runs the body, which is the product itself.
    """
    if not isinstance(second_factor(node)[0], gs.Constant):
        return why("the second factor is not constant", node)
    return _fuse(edit, node, why, bodies, word="tiles")


def _fuse(edit: Edit, node: gs.Node, why: Why, bodies: Bodies, *, word: str) -> bool:
    matrix, axis = second_factor(node)
    if (dims := shape_of(matrix)) is None or len(dims) < 2:
        return why("the second factor is not known to be a matrix", node)
    bias = input_of(node, 2)
    width = dims[1 - axis]  # of a Gemm; for a MatMul it is not read
    reason = obstacle(node, width if isinstance(width, int) else -1)
    if bias is not None and reason.startswith("the bias"):
        reason = ""  # an Add broadcasts any bias that a Gemm takes
    if not reason and dtype_of(matrix) != _FLOAT32:
        reason = "the dtype is not float32"
    if reason:
        return why(reason, node)
    name = "gather_mm.transposed" if axis else "gather_mm"
    variant = name + ("_" if axis else ".") * bool(word) + word
    op_type = bodies.provide_composite(name, _FLOAT32, variant)
    if op_type is None:
        return why("the model's gather_mm has another body", node)
    call = {"num_batch_axes": 0, "transpose_rhs": axis, "version": 1}
    factors = [node.inputs[0], matrix]
    if bias is None:
        edit.become(node, op_type, factors, domain=STANDARD_DOMAIN, **call)
        return True
    product = edit.add(op_type, node, factors, domain=STANDARD_DOMAIN, **call)
    rows, *_ = shape_of(node.inputs[0]) or (None,)
    product.dtype, product.shape = _FLOAT32, [rows, width]
    edit.become(node, "Add", [product, bias])
    return True
