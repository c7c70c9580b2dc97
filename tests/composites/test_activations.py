"""Activations and log-softmax, against their formulas and torch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.activations import (
    GELU,
    HARD_SIGMOID,
    HARD_SWISH,
    LOG_SOFTMAX,
    SILU,
    add_bias,
    geglu,
    gelu,
    hard_sigmoid,
    hard_swish,
    log_softmax,
    silu,
    swiglu,
)
from tests.support.tolerances import assert_close


def test_is_silu_times_up() -> None:
    gate, up = torch.randn(3, 8) * 10, torch.randn(3, 8)
    assert_close(swiglu(gate, up), F.silu(gate) * up)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_is_rounded_once_of_swiglu(dtype: torch.dtype) -> None:
    gate, up = torch.randn(3, 8).to(dtype), torch.randn(3, 8).to(dtype)
    expected = (F.silu(gate.double()) * up.double()).to(dtype)
    assert_close(swiglu(gate, up), expected)


def test_large_gates_do_not_overflow() -> None:
    gate = torch.tensor([-1e4, 0.0, 1e4])
    assert_close(swiglu(gate, torch.ones(3)), torch.tensor([0.0, 0.0, 1e4]))


FORMS = ["none", "tanh"]


@pytest.mark.parametrize("approximate", FORMS)
def test_is_gelu_times_up(approximate: str) -> None:
    gate, up = torch.randn(3, 8) * 3, torch.randn(3, 8)
    assert_close(
        geglu(gate, up, approximate=approximate), F.gelu(gate, approximate=approximate) * up
    )


@pytest.mark.parametrize("approximate", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_is_rounded_once_of_geglu(dtype: torch.dtype, approximate: str) -> None:
    gate, up = torch.randn(3, 8).to(dtype), torch.randn(3, 8).to(dtype)
    wide = F.gelu(gate.double(), approximate=approximate) * up.double()
    assert_close(geglu(gate, up, approximate=approximate), wide.to(dtype))


ACTIVATIONS = {
    "none": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_is_rounded_once_of_add_bias(activation: str, dtype: torch.dtype) -> None:
    x, bias = torch.randn(3, 8).to(dtype), torch.randn(8).to(dtype)
    expected = ACTIVATIONS[activation](x.double() + bias.double()).to(dtype)
    assert_close(add_bias(x, bias, activation=activation), expected)


def test_the_result_is_a_new_tensor() -> None:
    x = torch.randn(3, 8)
    assert add_bias(x, torch.zeros(8)).data_ptr() != x.data_ptr()


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_both_formulas(dtype: torch.dtype) -> None:
    x = torch.linspace(-6, 6, 49).to(dtype)
    wide = x.double()
    exact = wide / 2 * torch.special.erfc(-wide / math.sqrt(2))
    cubic = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    near = wide / 2 * (1 + torch.tanh(cubic))
    assert_close(gelu(x), exact.to(dtype))
    assert_close(gelu(x, approximate="tanh"), near.to(dtype))


def test_knows_two_forms() -> None:
    dims = {"input": (3,)}
    assert GELU.check(dims, {"approximate": "none"}) == ""
    wrong = GELU.check(dims, {"approximate": "fast"})
    assert wrong == "approximate must be one of none, tanh, got 'fast'"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_the_formula_of_silu(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-8, 8, 65), torch.tensor([-3.0, 0.0, 3.0])]).to(dtype)
    wide = x.double()
    expected = wide * torch.sigmoid(wide)
    assert_close(silu(x), expected.to(dtype))


def test_keeps_nan_and_infinity_apart_of_silu() -> None:
    x = torch.tensor([float("inf"), float("nan")])
    result = silu(x)
    assert result[0] == float("inf")
    assert result[1].isnan()


def test_has_no_attributes_of_silu() -> None:
    assert SILU.attributes == ()
    assert [i.name for i in SILU.inputs] == ["input"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_the_formula_of_hard_sigmoid(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-8, 8, 65), torch.tensor([-3.0, 0.0, 3.0])]).to(dtype)
    wide = x.double()
    expected = torch.clamp(wide + 3, 0, 6) / 6
    assert_close(hard_sigmoid(x), expected.to(dtype))


def test_keeps_nan_and_infinity_apart_of_hard_sigmoid() -> None:
    x = torch.tensor([float("inf"), float("nan")])
    result = hard_sigmoid(x)
    assert result[0] == 1
    assert result[1].isnan()


def test_has_no_attributes_of_hard_sigmoid() -> None:
    assert HARD_SIGMOID.attributes == ()
    assert [i.name for i in HARD_SIGMOID.inputs] == ["input"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_the_formula_of_hard_swish(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-8, 8, 65), torch.tensor([-3.0, 0.0, 3.0])]).to(dtype)
    wide = x.double()
    expected = wide * torch.clamp(wide + 3, 0, 6) / 6
    assert_close(hard_swish(x), expected.to(dtype))


def test_keeps_nan_and_infinity_apart_of_hard_swish() -> None:
    x = torch.tensor([float("inf"), float("nan")])
    result = hard_swish(x)
    assert result[0] == float("inf")
    assert result[1].isnan()


def test_has_no_attributes_of_hard_swish() -> None:
    assert HARD_SWISH.attributes == ()
    assert [i.name for i in HARD_SWISH.inputs] == ["input"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("axis", [-1, 0])
def test_gives_the_formula_without_overflow(axis: int, dtype: torch.dtype) -> None:
    x = (torch.randn(4, 5) * 100).to(dtype)
    expected = x.double() - torch.logsumexp(x.double(), axis, keepdim=True)
    assert_close(log_softmax(x, axis=axis), expected.to(dtype))


def test_an_axis_must_be_there() -> None:
    assert LOG_SOFTMAX.check({"input": (2, 3)}, {"axis": -2}) == ""
    wrong = LOG_SOFTMAX.check({"input": (2, 3)}, {"axis": 2})
    assert wrong == "axis 2 is out of range for input of rank 2"
