"""Fuses products in bfloat16 and float16: gather_mm."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.quantized_layers import (
    before_transposes,
    obstacle,
    second_factor,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    cast_to,
    dtype_of,
    input_of,
    made_by,
)
from coreai_onnx.passes.engine.narrow import BFLOAT16
from coreai_onnx.passes.engine.why import Why

_FLOAT16 = np.dtype(np.float16)
_FLOAT = int(ir.DataType.FLOAT)


@makes_functions
@rewrites("MatMul", "Gemm")
def fuse_narrow_products(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """MatMul or Gemm of bfloat16 or float16 factors, the second one constant → gather_mm.

    x:bf16 ─Cast→, w:bf16[k, n] ─Cast→, MatMul ─Cast→ y:bf16
    becomes     gather_mm(x, w) → y:bf16

    onnxruntime has no product of bfloat16 on a CPU, and none of float16 on x86, and keeps such
    weights in float32. The kernel packs the weight once, and multiplies tiles where the processor
    has them (AMX). Only if the product is rounded to the dtype of its factors; a Gemm is rounded
    before its bias is added, as a MatMul is.
    """
    if len(node.inputs) < 2:
        return False
    left = _narrow(node.inputs[0])
    turned, axis = second_factor(node)
    narrow = _narrow(turned)
    if left is None or narrow is None:
        return False
    matrix, axis = before_transposes(narrow, axis)
    if not isinstance(matrix, gs.Constant) or len(matrix.shape) != 2:
        return False
    dtype = dtype_of(left)
    # A product of float16 is written as such: onnxruntime itself inserts the casts that a
    # conversion writes for bfloat16.
    computed = np.dtype(np.float32) if dtype == BFLOAT16 else _FLOAT16
    reason = obstacle(node, matrix.shape[1 - axis], computed) or _not_rounded(edit, node)
    if reason:
        return why(reason, node)
    name = "gather_mm.transposed" if axis else "gather_mm"
    op_type = bodies.provide_composite(name, dtype)
    if op_type is None:
        return why("the model's gather_mm has another body", node)
    _write(edit, node, op_type, [left, matrix], axis)
    return True


def _narrow(tensor: gs.Tensor) -> gs.Tensor | None:
    """Return a tensor of float16, or the tensor of bfloat16 that a Cast widens to float32."""
    if dtype_of(tensor) == _FLOAT16:
        return tensor
    cast = made_by(tensor, "Cast")
    if cast is None or cast_to(cast) != _FLOAT or dtype_of(cast.inputs[0]) != BFLOAT16:
        return None
    return cast.inputs[0]


def _not_rounded(edit: Edit, node: gs.Node) -> str:
    """Return that a product is read in float32; empty if each reader rounds it to bfloat16."""
    product = node.outputs[0]
    # The result of a float16 op is float16 by the schema.
    if dtype_of(node.inputs[0]) == _FLOAT16:
        return ""
    # gather_mm returns the dtype of its factors, so a float32 reader would get fewer bits.
    rounded = all(cast_to(reader) == int(ir.DataType.BFLOAT16) for reader in product.outputs)
    return "" if rounded and not edit.is_output(product) else "the product is read in float32"


def _write(edit: Edit, node: gs.Node, op_type: str, factors: list[gs.Tensor], axis: int) -> None:
    """Replace a product; the bias of a Gemm is added to it in the dtype of the Gemm."""
    attributes: dict[str, Any] = {"num_batch_axes": 0, "transpose_rhs": axis, "version": 1}
    bias, output = input_of(node, 2), node.outputs[0]
    if bias is None:
        edit.become(node, op_type, factors, domain=STANDARD_DOMAIN, **attributes)
        output.dtype = factors[0].dtype  # the Casts that read it have no effect now
        return
    product = edit.add(op_type, node, factors, domain=STANDARD_DOMAIN, **attributes)
    shape = [*factors[0].shape[:-1], factors[1].shape[1 - axis]]
    product.dtype, product.shape = factors[0].dtype, shape
    if dtype_of(product) == _FLOAT16:
        edit.become(node, "Add", [product, bias])
        return
    wide = edit.add("Cast", node, [product], np.dtype(np.float32), shape, to=_FLOAT)
    edit.become(node, "Add", [wide, bias])
