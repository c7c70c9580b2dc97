"""Recognizes models that are quantized already."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.errors import QuantizationError
from coreai_onnx.model.inventory import CONTRIB_DOMAIN, STANDARD_DOMAIN, graphs

_FEW_BITS = {
    (STANDARD_DOMAIN, "linear_nbits"), (STANDARD_DOMAIN, "embedding_nbits"),
    (STANDARD_DOMAIN, "gather_mm_nbits"), (CONTRIB_DOMAIN, "MatMulNBits"),
    (CONTRIB_DOMAIN, "GatherBlockQuantized"), (CONTRIB_DOMAIN, "QMoE"),
}  # fmt: skip
_INTEGERS = {
    ("", "DequantizeLinear"), ("", "MatMulInteger"), ("", "QLinearMatMul"), ("", "ConvInteger"),
    ("", "QLinearConv"), (STANDARD_DOMAIN, "blockwise_shift_scale"),
    (STANDARD_DOMAIN, "lut_to_dense"),
}  # fmt: skip


def refuse_few_bits(model: ir.Model) -> None:
    """Check that a model has no products or lookups with weights of few bits.

    Raises:
        QuantizationError: It has some.
    """
    _refuse(model, _FEW_BITS, "have weights of few bits")


def refuse_integers(model: ir.Model) -> None:
    """Check that a model in which nothing can be quantized has no integers for weights.

    Raises:
        QuantizationError: It has some.
    """
    _refuse(model, _INTEGERS, "compute with integers, or dequantize them")


def _refuse(model: ir.Model, ops: set[tuple[str, str]], what: str) -> None:
    found = [(n.domain, n.op_type.partition(".")[0]) for graph in graphs(model) for n in graph]
    if count := sum(op in ops for op in found):
        raise QuantizationError(
            f"the model is quantized already: {count} of its nodes {what}\n"
            "  quantize the original model, with rules for layers that need other bits"
        )
