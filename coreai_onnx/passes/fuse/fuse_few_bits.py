"""Fuses products with quantized weights: linear_nbits."""

from __future__ import annotations

from typing import Any

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.weight_formats import CODE_BITS
from coreai_onnx.passes.analysis.quantized_layers import obstacle, second_factor
from coreai_onnx.passes.analysis.quantized_weights import (
    CodedWeight,
    QuantizedWeight,
    quantized_weight,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import input_of, made_by
from coreai_onnx.passes.engine.narrow import in_dtype, widened_call
from coreai_onnx.passes.engine.why import Why

_BYTE = 8
_DEFAULT_BITS = 4


@makes_functions
@rewrites("MatMul", "Gemm")
def fuse_few_bits(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """MatMul or Gemm with a weight that is dequantized in groups → linear_nbits.

    DequantizeLinear(w:int4[n, k], scales, zeros) ─Transpose→ t, MatMul(x, t) → y
    becomes     linear_nbits(x, codes:uint8[n, k / 32, 16], scales, zeros) → y

    Also if Cast, Sub and Mul dequantize the weight. Codes have as many bits as the values of the
    weight need, 2, 3, 4 or 8. A product whose other factor is quantized as well stays for
    onnxruntime, which multiplies integers. The weight is packed when the model is written.
    """
    packed: dict[gs.Tensor, list[gs.Tensor]] = edit.once(dict)
    if len(node.inputs) < 2:
        return False
    matrix, axis = second_factor(node)
    weight = quantized_weight(matrix)
    if weight is None or made_by(node.inputs[0], "DequantizeLinear") is not None:
        return False
    codes = _codes(weight, axis)
    reason = codes if isinstance(codes, str) else obstacle(node, codes.outputs)
    if reason or isinstance(codes, str):
        return why(reason, node)
    op_type = bodies.provide_composite(_op_type(codes), np.dtype(np.float32))
    if op_type is None:
        return why("the model's linear_nbits has another body", node)
    # A matrix that several products share is packed once.
    if matrix not in packed:
        packed[matrix] = codes.tensors(edit, "groups", np.asarray)
    _write(edit, node, op_type, codes, packed[matrix])
    return True


@makes_functions
@rewrites("Cast")
def narrow_few_bits(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """A product in float32 between Casts, which rounds its result itself → linear_nbits.

    x:bf16 ─Cast→ ─linear_nbits→ ─Cast→ y:bf16
    becomes     linear_nbits(x, …) → y
    """
    found = widened_call(edit, node, "linear_nbits")
    function = None if found is None else bodies.function(found[0])
    # The body of another release may have another end.
    if found is None or function is None or made_by(function.outputs[0], "CastLike") is None:
        return False
    product, x, dtype = found
    inputs = [x, *product.inputs[1:]]
    names = [tensor.name for tensor in function.inputs]
    if "bias" in names:
        place = names.index("bias")
        bias = in_dtype(edit, inputs[place], dtype)
        if bias is None:
            return why("bias must have the dtype of the input", node)
        inputs[place] = bias
    edit.become(node, product.op, inputs, domain=STANDARD_DOMAIN, **product.attrs)
    return True


def _codes(weight: QuantizedWeight, axis: int) -> CodedWeight | str:
    """Return the codes of a weight with input features on ``axis``, or why there are none."""
    if weight.axis != axis:
        return "groups must lie along the input features"
    inputs, outputs = weight.shape[axis], weight.shape[1 - axis]
    if inputs % weight.block:
        return "the last group of a row is shorter"
    limits = weight.limits()
    if limits is None:
        return "the weight may differ between runtimes"
    low, high = limits
    # The fewest bits come first, for the smallest file.
    for bits in sorted(CODE_BITS):
        if weight.block * bits % _BYTE:
            continue
        # The first two are those of signed and unsigned integers, with which symmetric weights need
        # no stored zero points.
        firsts = (first for first in (-(1 << (bits - 1)), 0, low) if first <= low)
        first = next((first for first in firsts if high < first + (1 << bits)), None)
        if first is not None:
            return CodedWeight(weight, outputs, inputs, bits, weight.block, first)
    return "the weight needs more than 8 bits, or a group does not fill whole bytes"


def _op_type(codes: CodedWeight) -> str:
    """Return the composite with the variant of its body."""
    words = [] if codes.bits == _DEFAULT_BITS else [f"bits{codes.bits}"]
    words += ["zero_points"] if codes.zeros() is not None else []
    return ".".join(["linear_nbits", "_".join(words)] if words else ["linear_nbits"])


def _write(
    edit: Edit, node: gs.Node, op_type: str, codes: CodedWeight, tensors: list[gs.Tensor]
) -> None:
    """Replace a product; the bias of a Gemm is added to it."""
    inputs, bias = [node.inputs[0], *tensors], input_of(node, 2)
    sizes = {"bits": codes.bits, "group_size": codes.weight.block, "scale_bits": 0}
    attributes: dict[str, Any] = {**sizes, "activation_bits": 0, "version": 1}
    if bias is None:
        edit.become(node, op_type, inputs, domain=STANDARD_DOMAIN, **attributes)
        return
    dtype, shape = node.outputs[0].dtype, node.outputs[0].shape
    product = edit.add(op_type, node, inputs, dtype, shape, domain=STANDARD_DOMAIN, **attributes)
    edit.become(node, "Add", [product, bias])
