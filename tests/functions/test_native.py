"""Native bodies: where ONNX has the op, at which opset and dtype; and the words of variants."""

from __future__ import annotations

import pytest
import torch

from tests.composite_calls import CASES

NATIVE = {
    "rms_norm-scaled": ("RMSNormalization", 23),
    "rms_norm-two_axes": ("RMSNormalization", 23),
    "layer_norm-scale_bias": ("LayerNormalization", 17),
}
BY_NAME = {str(c): c for c in CASES}


def body_ops(name: str, opset: int, dtype: torch.dtype = torch.float32) -> list[str]:
    model = BY_NAME[name].model(dtype, dynamic=False, opset=opset)
    (function,) = model.functions.values()
    return [n.op_type for n in function]


@pytest.mark.parametrize(("name", "expected"), NATIVE.items())
def test_bodies_use_onnxs_own_op(name: str, expected: tuple[str, int]) -> None:
    op_type, since = expected
    assert op_type in body_ops(name, max(since, 18))
    assert since <= 18 or op_type not in body_ops(name, since - 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", NATIVE)
def test_dtypes_without_kernels_are_spelled_out(name: str, dtype: torch.dtype) -> None:
    assert NATIVE[name][0] not in body_ops(name, 23, dtype)


@pytest.mark.parametrize(
    "name",
    [
        "rms_norm-wide_scale",
        "layer_norm-bias_only",
    ],
)
def test_other_meanings_are_spelled_out(name: str) -> None:
    ops = body_ops(name, 23, torch.float16)
    assert not {"LayerNormalization", "RMSNormalization"} & set(ops)
