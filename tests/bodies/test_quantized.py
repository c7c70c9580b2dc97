"""The functions of few-bit composites in a model."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.bodies.quantized import FewBitBodies
from coreai_onnx.errors import QuantizationError
from tests.quantization.example_weights import heavy_tailed, linear

ATTRIBUTES = {"bits": 4, "group_size": 32, "activation_bits": 0, "scale_bits": 0}
PRESENT = ["input", "codes", "scales"]


def test_one_function_per_variant() -> None:
    model = linear(heavy_tailed(4, 4))
    bodies = FewBitBodies(model)

    def op_type(dtype: ir.DataType, *more: str, bits: int = 4) -> str:
        attributes = ATTRIBUTES | {"bits": bits}
        return bodies("linear_nbits", dtype, [*PRESENT, *more], attributes)

    assert op_type(ir.DataType.FLOAT) == op_type(ir.DataType.BFLOAT16) == "linear_nbits"
    assert op_type(ir.DataType.DOUBLE) == "linear_nbits.float64"
    assert op_type(ir.DataType.FLOAT, "zero_points", bits=2) == "linear_nbits.bits2_zero_points"
    assert len(model.functions) == 3


@pytest.mark.parametrize("opset", [17, 99])
def test_an_opset_without_bodies_is_an_error(opset: int) -> None:
    with pytest.raises(QuantizationError, match=f"has opset {opset}; quantized weights need opset"):
        FewBitBodies(linear(heavy_tailed(4, 4), opset=opset))
