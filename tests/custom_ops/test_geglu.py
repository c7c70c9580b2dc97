"""geglu through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.activations import GEGLU as COMPOSITE
from tests.custom_ops.single_op import DTYPES, run_op
from tests.support.tolerances import assert_close

SHAPES = [(), (1,), (17,), (3, 5, 7), (2, 33000), (0,), (3, 0, 2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_reference(kernels, shape, approximate, dtype):
    gate, up = (torch.randn(shape) * 3).to(dtype), torch.randn(shape).to(dtype)
    actual = run_op(kernels, "geglu", [gate, up], threads=2, approximate=approximate)
    wanted = COMPOSITE.reference(gate.double(), up.double(), approximate=approximate)
    assert_close(actual, wanted.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_edges(kernels, approximate, dtype):
    edges = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 60000.0, -60000.0, -40.0, -9.0]
    gate = torch.tensor(edges).to(dtype)
    up = torch.full_like(gate, 0.5)
    wanted = COMPOSITE.reference(gate.double(), up.double(), approximate=approximate)
    actual = run_op(kernels, "geglu", [gate, up], approximate=approximate)
    assert_close(actual, wanted.to(dtype))


def test_the_default_is_exact(kernels):
    x = torch.randn(100) * 3
    wanted = torch.nn.functional.gelu(x.double()).float() * x
    assert_close(run_op(kernels, "geglu", [x, x]), wanted)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([torch.ones(2, 3), torch.ones(2)], {}, r"up of shape \[2\] must have the shape \[2, 3\]"),
        ([torch.ones(3)] * 2, {"approximate": "sigmoid"}, 'approximate is "sigmoid", expected "no'),
        ([torch.ones(3)] * 2, {"approximate": 1}, "attribute approximate is 1, expected a string"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, attributes, message):
    with pytest.raises(Exception, match=rf"geglu: .*{message}"):
        run_op(kernels, "geglu", inputs, **attributes)
