"""Activation functions against torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from coreai_onnx.errors import LoweringError
from tests.lower.checking import check, lower_module, op_types

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.9, -2.9, 3.0, -3.0, 6.5, 19.0, 21.0, 50.0, -50.0]

FUNCTIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "threshold": lambda x: F.threshold(x, 0.5, -3.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3, training=False),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, beta=2.0, threshold=3.0),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "hardshrink": lambda x: F.hardshrink(x, 0.5),
    "softshrink": lambda x: F.softshrink(x, 0.5),
    "sigmoid": torch.sigmoid,
    "elu_all": lambda x: torch.ops.aten.elu.default(x, 0.5, 1.5, 0.7),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype):
    check(FUNCTIONS[name], torch.tensor(SPECIAL, dtype=dtype))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_decomposed(name):
    check(FUNCTIONS[name], torch.tensor(SPECIAL), decompose=True)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("gelu", "gelu_tanh", "silu")])
def test_infinities(name):
    check(FUNCTIONS[name], torch.tensor([INF, -INF]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_integers(dtype):
    x = torch.tensor([0, 1, 7, 100]).to(dtype)
    x = torch.cat([x, -x]) if dtype.is_signed else x
    check(lambda x: (F.relu(x), F.threshold(x, 3, 2)), x)
    if dtype.is_signed:
        check(lambda x: (F.relu6(x), F.hardtanh(x, -2, 5)), x)


def test_relu_of_large_integers():
    check(F.relu, torch.tensor([2**53 + 1, -(2**53) - 1]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_prelu(shape, dtype):
    x = torch.randn(shape).to(dtype)
    channels = shape[1] if len(shape) > 1 else 1
    check(F.prelu, x, torch.rand(channels).to(dtype))
    check(F.prelu, x, torch.rand(1).to(dtype), decompose=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_glu(dim, dtype):
    check(lambda x: F.glu(x, dim), torch.randn(4, 6, 2).to(dtype))


def test_dynamic():
    batch = torch.export.Dim("batch")
    check(
        lambda x: [f(x) for f in FUNCTIONS.values()] + [F.glu(x), F.prelu(x, x[0, :1])],
        torch.randn(3, 4),
        dynamic_shapes=({0: batch},),
        others=[(torch.randn(5, 4),)],
    )


def test_empty():
    check(lambda x: (F.gelu(x), F.elu(x), F.glu(x)), torch.empty(0, 4))


@pytest.mark.parametrize("opset", [18, 26])
def test_opsets(opset):
    check(lambda x: [f(x) for f in FUNCTIONS.values()], torch.tensor(SPECIAL), opset=opset)


def test_simple_ones_are_one_node():
    x = torch.randn(3)
    assert op_types(check(F.relu, x)) == ["Relu"]
    assert op_types(check(F.silu, x)) == ["Sigmoid", "Mul"]
    assert op_types(check(F.leaky_relu, x)) == ["LeakyRelu"]


def test_rrelu_in_training_is_an_error():
    with pytest.raises(LoweringError, match="eval"):
        lower_module(lambda x: torch.rrelu(x, 0.1, 0.3, training=True), (torch.randn(3),))
