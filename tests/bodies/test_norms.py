"""Bodies of norms: ONNX's own ops where they mean the same; numbers are in the matrix."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.bodies.norms import trailing
from tests.bodies.body_ops import body_ops

X, W = (2, 5, 8), (8,)


def test_trailing_axes() -> None:
    assert trailing({"axes": [-2, -1]})
    assert not trailing({"axes": [-2]})
    assert not trailing({"axes": [-5, -4, -3, -2, -1]})  # more than have a body of their own


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
