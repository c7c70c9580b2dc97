"""Bodies of compressed weights: constants, once onnxruntime has loaded the model."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import coreai_onnx
from coreai_onnx.composites import (
    PalettizeModule,
    ScaledPalettizeModule,
    SparseModule,
    WeightDequantizeModule,
)
from tests.composites.matrix import model_of
from tests.support.composite_cases import CASES
from tests.support.tolerances import assert_close

ONES = torch.ones(8, 16, dtype=torch.uint8)
TABLE, SCALE = torch.randn(2, 1, 8, 1), torch.rand(4, 2)
WEIGHTS = {
    "palette": lambda: PalettizeModule(ONES, TABLE),
    "vectors": lambda: PalettizeModule(ONES[:4], torch.randn(1, 1, 2, 2), 0),
    "scaled": lambda: ScaledPalettizeModule(ONES, TABLE, SCALE),
    "sparse": lambda: SparseModule(torch.randn(128), ONES),
    "scale": lambda: WeightDequantizeModule(ONES, SCALE),
    "zero_point": lambda: WeightDequantizeModule(ONES, SCALE, ONES[:4, :2]),
    "minval": lambda: WeightDequantizeModule(ONES, SCALE, None, SCALE, torch.uint2),
}


class Linear(nn.Module):
    """A linear layer whose weight is the result of a module."""

    def __init__(self, weight: nn.Module) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight())


@pytest.mark.parametrize("target", ["onnxruntime", "portable"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_weight_is_a_constant_once_the_model_is_loaded(
    kind: str, target: str, tmp_path: Path
) -> None:
    model, x = Linear(WEIGHTS[kind]()).eval(), torch.randn(1, 16)
    program = coreai_onnx.convert(model, (x,)).optimize(target=target)
    program.save(tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.log_severity_level = 3  # an optimized file is for one machine only
    onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
    loaded = onnx.load(tmp_path / "loaded.onnx").graph
    assert [node.op_type for node in loaded.node] in (["MatMul"], ["Gemm"])
    assert_close(torch.from_numpy(program.run(x)[0]), model(x))


def test_a_variant_names_bits_and_inputs() -> None:
    names: set[str] = set()
    for composite in ("lut_to_dense", "sparse_to_dense", "blockwise_shift_scale"):
        calls = [(c, torch.float32) for c in CASES if c.composite == composite]
        model, _ = model_of(calls, 23)
        names |= {function.name for function in model.functions.values()}
    assert {"lut_to_dense", "lut_to_dense.bits6_scale", "sparse_to_dense"} <= names
    assert {"blockwise_shift_scale.minval", "blockwise_shift_scale.bits1_zero_point"} <= names
    assert not any(name.rpartition(".")[2].isdigit() for name in names)
