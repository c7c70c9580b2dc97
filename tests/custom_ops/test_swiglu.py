"""swiglu through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.activations import SWIGLU as COMPOSITE
from tests.custom_ops.single_op import DTYPES, run_op
from tests.support.tolerances import assert_close

SHAPES = [(), (1,), (17,), (3, 5, 7), (2, 33000), (0,), (3, 0, 2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_reference(kernels, shape, dtype):
    gate, up = (torch.randn(shape) * 4).to(dtype), torch.randn(shape).to(dtype)
    actual = run_op(kernels, "swiglu", [gate, up], threads=2)
    assert_close(actual, COMPOSITE.reference(gate.double(), up.double()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edges(kernels, dtype):
    edges = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 60000.0, -60000.0, -100.0, -80.0]
    gate = torch.tensor(edges).to(dtype)
    up = torch.full_like(gate, 0.5)
    wanted = COMPOSITE.reference(gate.double(), up.double()).to(dtype)
    assert_close(run_op(kernels, "swiglu", [gate, up]), wanted)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.ones(2, 3), torch.ones(3)], r"up of shape \[3\] must have the shape \[2, 3\]"),
        ([torch.ones(3), torch.ones(1)], r"up of shape \[1\] must have the shape \[3\] of gate"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, message):
    with pytest.raises(Exception, match=rf"swiglu: .*{message}"):
        run_op(kernels, "swiglu", inputs)
