"""Bodies of norms: ONNX's own ops where they mean the same; numbers are in the matrix."""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from tests.bodies.body_ops import body_ops
from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

X, W = (2, 5, 8), (8,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_onnxs_own_ops(dtype: torch.dtype) -> None:
    assert body_ops("layer_norm", [X, W, W], dtype=dtype) == ["LayerNormalization"]
    assert body_ops("rms_norm", [X, W], dtype=dtype) == ["RMSNormalization"]


def test_a_norm_without_its_op_divides_by_the_root() -> None:
    for ops in (body_ops("rms_norm", [X, W], opset=18), body_ops("rms_norm", [X])):
        assert [o for o in ops if o in ("Div", "Reciprocal")] == ["Div"]  # what onnxruntime fuses


def test_group_and_instance_norms() -> None:
    shapes = [(2, 6, 4, 5), (6,), (6,)]
    assert "InstanceNormalization" in body_ops("group_norm", shapes, {"num_groups": 3})
    assert body_ops("instance_norm", shapes) == ["InstanceNormalization"]
    wide = body_ops("group_norm", shapes, {"num_groups": 3}, dtype=torch.float64)
    assert "InstanceNormalization" not in wide


def test_batch_norm_is_one_op() -> None:
    shapes = [(2, 6, 4), (6,), (6,), (6,), (6,)]
    for dtype in (torch.float32, torch.float64):
        assert body_ops("batch_norm", shapes, dtype=dtype) == ["BatchNormalization"]
    assert set(body_ops("batch_norm", shapes, dtype=torch.float16)) == {
        "BatchNormalization",
        "Cast",
    }


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


@pytest.mark.parametrize(
    ("order", "op_type"),
    [(2.0, "ReduceL2"), (1.0, "ReduceL1"), (0.0, "ReduceSum"), (math.inf, "ReduceMax")],
)
def test_orders_with_a_reduction_of_their_own(order: float, op_type: str) -> None:
    ops = body_ops("linalg_vector_norm", [(2, 3)], {"ord": order})
    assert op_type in ops
    assert "Pow" not in ops


def test_any_other_order_is_read_from_the_call() -> None:
    three = body_ops("linalg_vector_norm", [(2, 3)], {"ord": 3.0})
    assert three == body_ops("linalg_vector_norm", [(2, 3)], {"ord": -0.5})
    assert three.count("Pow") == 2


def test_the_least_magnitude() -> None:
    assert "ReduceMin" in body_ops("linalg_vector_norm", [(2, 3)], {"ord": -math.inf})
