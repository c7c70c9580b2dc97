"""Rewrites the products of a model whose results must not depend on the number of rows."""

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
    op_type = bodies.provide_composite(name, _FLOAT32)
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
