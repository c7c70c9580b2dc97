"""add_bias through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.activations import ADD_BIAS as COMPOSITE
from tests.custom_ops.single_op import DTYPES, run_op
from tests.support.tolerances import assert_close

SHAPES = [(1,), (17,), (3, 5, 7), (2, 33000), (70, 1000), (0,), (3, 0, 2), (3, 0)]
ACTIVATIONS = ["none", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "exp"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_agrees_with_the_reference(kernels, activation, shape, dtype):
    x, bias = (torch.randn(shape) * 4).to(dtype), torch.randn(shape[-1]).to(dtype)
    actual = run_op(kernels, "add_bias", [x, bias], activation=activation, threads=2)
    wanted = COMPOSITE.reference(x.double(), bias.double(), activation=activation)
    assert_close(actual, wanted.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_edges(kernels, activation, dtype):
    edges = [0.0, -0.0, float("inf"), float("nan"), 60000.0, -60000.0, -100.0, -80.0]
    x = torch.tensor(edges).to(dtype)
    wanted = COMPOSITE.reference(x.double(), torch.zeros(8).double(), activation=activation)
    actual = run_op(kernels, "add_bias", [x, torch.zeros_like(x)], activation=activation)
    assert_close(actual, wanted.to(dtype))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (2,)), r"bias of shape \[2\] must have the size of the last axis .*\[2, 3\]"),
        (((2, 3), (1, 3)), r"bias of shape \[1, 3\] must have the size of the last axis"),
        (((2, 3), ()), r"bias of shape \[\] must have the size of the last axis"),
        (((), (1,)), r"bias of shape \[1\] must have the size of the last axis .*\[\]"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, shapes, message):
    with pytest.raises(Exception, match=rf"add_bias: .*{message}"):
        run_op(kernels, "add_bias", [torch.ones(shape) for shape in shapes])


def test_an_unknown_activation_is_refused(kernels):
    with pytest.raises(Exception, match=r'attribute activation is "relu", expected one of "none"'):
        run_op(kernels, "add_bias", [torch.ones(2), torch.ones(2)], activation="relu")
