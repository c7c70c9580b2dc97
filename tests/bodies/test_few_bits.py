"""Bodies of products with few-bit weights: one product, once onnxruntime has loaded the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from tests.composites.one_model import model_of
from tests.support.composite_calls import CASES, Case

CASE = Case(
    "linear_nbits",
    ((1, 64), (6, 2, 16), (6, 2), (6, 2), None, (6,)),
    {"group_size": 32},
    {1: torch.uint8, 2: torch.bfloat16, 3: torch.uint8},
    "constants",
    256,
)


def as_constants(case: Case) -> onnx.ModelProto:
    """Return a model of a call and an op after it; all inputs but the first are initializers."""
    inputs = case.inputs(torch.float32)
    proto = ir.to_proto(case.model(torch.float32, dynamic=True))
    proto.graph.node.append(onnx.helper.make_node("Erf", ["result_0"], ["erf"]))
    proto.graph.output[0].name = "erf"
    given = (x for x in inputs if x is not None)
    for value, tensor in list(zip(list(proto.graph.input), given, strict=True))[1:]:
        proto.graph.input.remove(value)
        constant = ir.to_proto(ir.tensor(tensor))
        constant.name = value.name
        proto.graph.initializer.append(constant)
    return proto


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_a_constant_weight_is_unpacked_when_the_model_is_loaded(bits: int, tmp_path: Path) -> None:
    codes = (6, 2, 4 * bits)
    case = Case(CASE.composite, (CASE.shapes[0], codes, *CASE.shapes[2:]), {"bits": bits},
                CASE.dtypes, "constants", 256)  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(as_constants(case).SerializeToString(), options)
    optimized = onnx.load(options.optimized_model_filepath)
    types = [node.op_type for node in optimized.graph.node]
    assert types == ["Gemm", "Erf"]
    weights = {w.name: w for w in optimized.graph.initializer}
    assert np.dtype(np.float32) in {onnx.numpy_helper.to_array(w).dtype for w in weights.values()}
    assert (64, 6) in {tuple(w.dims) for w in weights.values()}


def test_a_variant_names_bits_rounding_zeros_palette_and_bias() -> None:
    calls = [(c, torch.float32) for c in CASES if c.composite == "linear_nbits"]
    model, _ = model_of(calls, 23)
    names = {function.name for function in model.functions.values()}
    assert {"linear_nbits", "linear_nbits.bits2_rounded_palette_bias"} <= names
    assert {"linear_nbits.bits8_rounded_zero_points_bias", "linear_nbits.zero_points"} <= names
    assert not any(name.rpartition(".")[2].isdigit() for name in names)
