"""Bodies of residual norms: ONNX's own ops where they mean the same, and a rounded sum."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

X = (2, 5, 8)


def ops(name: str, dtype: torch.dtype, opset: int) -> set[str]:
    model = Case(name, (X, X, (8,))).model(dtype, dynamic=True, opset=opset)
    (function,) = model.functions.values()
    return {n.op_type for n in function}


def test_onnx_norms_are_used() -> None:
    assert ops("skip_rms_norm", torch.float32, 23) == {"Add", "RMSNormalization"}
    assert "RMSNormalization" not in ops("skip_rms_norm", torch.float32, 22)
    assert ops("skip_layer_norm", torch.float32, 18) == {"Add", "LayerNormalization"}


def test_onnxruntime_does_not_fuse_a_layer_norm_with_its_sum(tmp_path) -> None:
    """Its op for both takes up to four times as long as the two (docs/performance.md)."""
    assert ops("skip_layer_norm", torch.float32, 23) == {"Sum", "LayerNormalization"}
    model = ir.to_proto(
        Case("skip_layer_norm", (X, X, (8,), (8,))).model(torch.float32, dynamic=True)
    )
    del model.graph.output[1]  # it fuses sums that nothing else reads
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    left = onnx.load(tmp_path / "optimized.onnx").graph.node
    assert [node.op_type for node in left] == ["Sum", "LayerNormalization"]


@pytest.mark.parametrize("name", ["skip_rms_norm", "skip_layer_norm"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_norm_is_that_of_the_rounded_sum(name: str, dtype: torch.dtype) -> None:
    """The sums are not representable, and only their rounding has a variance."""
    case = Case(name, (X, X))
    step = torch.finfo(dtype).eps
    x = torch.ones(X).to(dtype)
    skip = (torch.arange(8) * step * 0.26).expand(X).to(dtype)
    output, total = run_model(case.model(dtype, dynamic=True), [x, skip])
    expected = case.expected_outputs([x, skip])
    assert_close([output, total], expected)
    assert expected[1].unique().numel() < 8
