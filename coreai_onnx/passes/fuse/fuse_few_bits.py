"""Fuses products with quantized weights: linear_nbits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coreai_onnx.model.packed_codes import pack_codes
from coreai_onnx.model.weight_formats import CODE_BITS
from coreai_onnx.passes.analysis.quantized_layers import obstacle, second_factor
from coreai_onnx.passes.analysis.quantized_weights import QuantizedWeight, quantized_weight
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.constants import lazy_constant
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import DOMAIN, input_of, is_standard, made_by
from coreai_onnx.passes.engine.why import Why

_BYTE = 8
_DEFAULT_BITS = 4


@dataclass(frozen=True)
class _Codes:
    """A weight as the composite reads it: one row per output, codes from 0 on.

    Attributes:
        weight: The quantized weight.
        outputs: Number of rows.
        inputs: Number of columns.
        bits: Size of a code.
        lowest: The quantized value with code 0.
    """

    weight: QuantizedWeight
    outputs: int
    inputs: int
    bits: int
    lowest: int

    @property
    def groups(self) -> int:
        """The number of groups in a row."""
        return self.inputs // self.weight.block

    @property
    def has_zeros(self) -> bool:
        """Whether a zero point is not the composite's default."""
        return bool(np.any(self.weight.zeros - self.lowest != 1 << (self.bits - 1)))

    def codes(self, *sources: np.ndarray) -> np.ndarray:
        """Return the packed codes, ``[outputs, groups, bytes]``."""
        # In int16, since an int8 minus the lowest value, such as -128, does not fit into int8.
        steps = self.weight.steps(*sources).astype(np.int16).reshape(self.weight.shape)
        grouped = (self.weight.by_rows(steps) - self.lowest).reshape(self.outputs, self.groups, -1)
        return pack_codes(grouped, self.bits)

    def scales(self, *sources: np.ndarray) -> np.ndarray:
        """Return the scales, ``[outputs, groups]``."""
        return self.weight.by_rows(self.weight.per_block(self.weight.scales(*sources)))

    def zeros(self) -> np.ndarray:
        """Return the codes of the zero points, ``[outputs, groups]``."""
        return np.ascontiguousarray(self.weight.by_rows(self.weight.zeros) - self.lowest, np.uint8)


@makes_functions
def fuse_few_bits(graph: gs.Graph, why: Why, bodies: Bodies) -> int:
    """MatMul or Gemm with a weight that is dequantized in groups → linear_nbits.

    DequantizeLinear(w:int4[n, k], scales, zeros) ─Transpose→ t, MatMul(x, t) → y
    becomes     linear_nbits(x, codes:uint8[n, k / 32, 16], scales, zeros) → y

    Also if Cast, Sub and Mul dequantize the weight. Codes have as many bits as the values of the
    weight need, 2, 3, 4 or 8. A product whose other factor is quantized as well stays for
    onnxruntime, which multiplies integers. The weight is packed when the model is written.
    """
    edit, count = Edit(graph), 0
    packed: dict[gs.Tensor, list[gs.Tensor]] = {}
    for node in graph.nodes:
        if not is_standard(node, "MatMul", "Gemm") or len(node.inputs) < 2:
            continue
        matrix, axis = second_factor(node)
        weight = quantized_weight(matrix)
        if weight is None or made_by(node.inputs[0], "DequantizeLinear") is not None:
            continue
        codes = _codes(weight, axis)
        reason = codes if isinstance(codes, str) else obstacle(node, codes.outputs)
        if reason or isinstance(codes, str):
            why(reason, node)
            continue
        op_type = bodies.provide_composite(_op_type(codes), np.dtype(np.float32))
        if op_type is None:
            why("the model's linear_nbits has another body", node)
            continue
        # A matrix that several products share is packed once.
        tensors = packed.get(matrix)
        if tensors is None:
            tensors = packed[matrix] = _tensors(edit, codes)
        _write(edit, node, op_type, codes, tensors)
        count += 1
    edit.finish()
    return count


def _codes(weight: QuantizedWeight, axis: int) -> _Codes | str:
    """Return the codes of a weight with input features on ``axis``, or why there are none."""
    if weight.axis != axis:
        return "the groups do not go along the inputs"
    inputs = weight.shape[axis]
    if inputs % weight.block:
        return "the last group of a row is shorter"
    limits = weight.limits()
    if limits is None:
        return "the weight is not the same in every runtime"
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
            return _Codes(weight, weight.shape[1 - axis], inputs, bits, first)
    return "the weight needs more than 8 bits, or a group does not fill whole bytes"


def _op_type(codes: _Codes) -> str:
    """Return the composite with the variant of its body."""
    words = [] if codes.bits == _DEFAULT_BITS else [f"bits{codes.bits}"]
    words += ["zero_points"] if codes.has_zeros else []
    return ".".join(["linear_nbits", "_".join(words)] if words else ["linear_nbits"])


def _tensors(edit: Edit, codes: _Codes) -> list[gs.Tensor]:
    """Return the inputs of the composite for the weight."""
    names, weight = context_of(edit.graph).names, codes.weight
    source = weight.steps.constants[0].name
    size = [codes.outputs, codes.groups]
    made: list[gs.Tensor] = [
        lazy_constant(
            names.claim(f"{source}.{codes.bits}_bits"),
            codes.codes,
            weight.steps.constants,
            [*size, weight.block * codes.bits // _BYTE],
            np.dtype(np.uint8),
        ),
        lazy_constant(
            names.claim(f"{weight.scales.constants[0].name}.groups"),
            codes.scales,
            weight.scales.constants,
            size,
            np.dtype(np.float32),
        ),
    ]
    if codes.has_zeros:
        made.append(edit.constant(f"{source}.zero_points", codes.zeros()))
    return made


def _write(
    edit: Edit, node: gs.Node, op_type: str, codes: _Codes, tensors: list[gs.Tensor]
) -> None:
    """Replace a product; the bias of a Gemm is added to it."""
    inputs, bias = [node.inputs[0], *tensors], input_of(node, 2)
    attributes: dict[str, Any] = {
        "bits": codes.bits,
        "group_size": codes.weight.block,
        "activation_bits": 0,
        "version": 1,
    }
    if bias is None:
        edit.become(node, op_type, inputs, domain=DOMAIN, **attributes)
        return
    product = edit.node(op_type, node, inputs, domain=DOMAIN, **attributes).outputs[0]
    product.dtype, product.shape = node.outputs[0].dtype, node.outputs[0].shape
    edit.become(node, "Add", [product, bias])
