"""Inputs are rounded as compressed-tensors rounds them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.rounded_activations import ActivationScheme, Rounding
from tests.support.tolerances import assert_close

X = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0)) * 3
INT = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}


def rounding(scale: Any = None, zero: Any = None, total: Any = None, **settings: Any) -> Rounding:
    scheme = ActivationScheme.of({**INT, **settings})
    assert scheme is not None
    return Rounding(scheme, scale, zero, total)


def with_ends(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Round to the 256 values from ``low`` to ``high``, one of which is 0."""
    scale = (high - low) / 255
    zero = (-128 - low / scale).round().clamp(-128, 127)
    return ((x / scale + zero).round().clamp(-128, 127) - zero) * scale


def test_a_scale_for_each_token() -> None:
    scale = X.abs().amax(-1, keepdim=True) / 127.5
    assert_close(rounding()(X), (X / scale).round().clamp(-128, 127) * scale)
    low, high = X.amin(-1, keepdim=True), X.amax(-1, keepdim=True)
    assert_close(rounding(symmetric=False)(X), with_ends(X, low, high))


def test_positive_and_zero_inputs() -> None:
    low, high = torch.zeros(2, 3, 1), X.abs().amax(-1, keepdim=True)
    assert_close(rounding(symmetric=False)(X.abs()), with_ends(X.abs(), low, high))
    zeros = torch.zeros(2, 64)
    for symmetric in (True, False):
        assert_close(rounding(symmetric=symmetric)(zeros), zeros)


def test_one_scale_for_the_tensor() -> None:
    scale = X.abs().max() / 127.5
    expected = (X / scale).round().clamp(-128, 127) * scale
    assert_close(rounding(strategy="tensor")(X), expected)


def test_a_scale_for_each_group() -> None:
    groups = X.unflatten(-1, (2, 32))
    scale = groups.abs().amax(-1, keepdim=True) / 127.5
    expected = ((groups / scale).round().clamp(-128, 127) * scale).flatten(-2)
    assert_close(rounding(strategy="group", group_size=32)(X), expected)


def test_float8() -> None:
    scale = X.abs().amax(-1, keepdim=True) / 448
    expected = (X / scale).to(torch.float8_e4m3fn).float() * scale
    assert_close(rounding(type="float")(X), expected)
    static = rounding(torch.tensor([0.01]), type="float", dynamic=False, strategy="tensor")
    expected = (X / 0.01).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.01
    assert_close(static(X), expected)


def test_integers_of_4_bits() -> None:
    scale = X.abs().amax(-1, keepdim=True) / 7.5
    assert_close(rounding(num_bits=4)(X), (X / scale).round().clamp(-8, 7) * scale)


NVFP4 = {
    "num_bits": 4,
    "type": "float",
    "dynamic": "local",
    "strategy": "tensor_group",
    "group_size": 16,
    "scale_dtype": "torch.float8_e4m3fn",
}


def test_nvfp4() -> None:
    total = 448 * 6 / X.abs().max()
    groups = X.unflatten(-1, (4, 16))
    largest = groups.abs().amax(-1, keepdim=True)
    scale = (total * largest / 6).to(torch.float8_e4m3fn).float() / total
    numbers = torch.tensor([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nearest = ((groups / scale).unsqueeze(-1) - numbers).abs().argmin(-1)
    assert_close(rounding(total=total, **NVFP4)(X), (numbers[nearest] * scale).flatten(-2))
    zeros = torch.zeros(2, 64)
    assert_close(rounding(total=total, **NVFP4)(zeros), zeros)
    with pytest.raises(ModelSourceError, match="one number in input_global_scale"):
        rounding(**NVFP4)


def test_halves_of_float4_are_rounded_to_even() -> None:
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    wanted = torch.tensor([0, 1, 1, 2, 2, 4, 4, 6.0])
    layer = rounding(total=torch.tensor(448.0), **{**NVFP4, "group_size": 8})
    assert torch.equal(layer(halves), wanted)
    assert torch.equal(layer(-halves), -wanted)


MX = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}


@pytest.mark.parametrize("bits", [8, 4])
def test_mx_formats(bits: int) -> None:
    largest = torch.tensor([0.0, 1.0, 1.7499, 1.75, 448.0, 6.0, 2.0**-20, 3e38])
    # 1.75 becomes 2 before its exponent is taken; 2**8 and 2**2 are in the largest numbers.
    exponents = torch.tensor([0, 0, 0, 1, 9, 2, -20, 128]) - {8: 8, 4: 2}[bits]
    x = torch.zeros(8, 32)
    x[:, 5], x[:, 9], x[:, 11] = largest, -largest / 3, largest / 50
    layer = rounding(num_bits=bits, **MX)
    _, scales, _ = layer.steps(x[1:])
    units = torch.ldexp(torch.ones(8), exponents).unsqueeze(1)
    assert torch.equal(scales, units[1:])
    scaled = x / units
    numbers = torch.tensor([6, 4, 3, 2, 1.5, 1, 0.5, 0])  # 3.5 becomes 4, which is even
    if bits == 8:
        expected = scaled.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    else:
        expected = numbers[(scaled.abs().unsqueeze(-1) - numbers).abs().argmin(-1)] * scaled.sign()
    assert torch.equal(layer(x.unsqueeze(1)).squeeze(1), expected * units)
    program = coreai_onnx.convert(layer.eval(), (x,))
    assert torch.equal(torch.tensor(program.run(x)[0]), layer(x))


def test_unknown_settings() -> None:
    with pytest.raises(ModelSourceError, match=r"setting scale_dtype = 'torch.uint8' is not"):
        rounding(scale_dtype="torch.uint8")


def test_a_static_scale() -> None:
    static = {"dynamic": False, "strategy": "tensor"}
    expected = (X / 0.03125).round().clamp(-128, 127) * 0.03125
    assert_close(rounding(torch.tensor([0.03125]), **static)(X), expected)
    shifted = ((X / 0.03125).round() + 5).clamp(-128, 127) - 5
    zero = torch.tensor([5], dtype=torch.int8)
    assert_close(rounding(torch.tensor([0.03125]), zero, **static)(X), shifted * 0.03125)


def test_nothing_is_rounded() -> None:
    assert ActivationScheme.of(None) is None
    assert ActivationScheme.of({}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"num_bits": 5},
        {"num_bits": 4, "type": "float"},
        {"num_bits": 4, "dynamic": False, "strategy": "tensor"},
        {"type": "complex"},
        {"dynamic": "local"},
        {"strategy": "channel"},
        {"dynamic": False, "strategy": "token"},
        {"type": "float", "symmetric": False},
    ],
)
def test_unsupported_schemes(change: dict[str, Any]) -> None:
    with pytest.raises(ModelSourceError, match="are not supported, only 8 bits"):
        rounding(**change)


def test_a_static_scale_is_one_number() -> None:
    for scale in (None, torch.ones(2)):
        with pytest.raises(ModelSourceError, match="need one number in input_scale"):
            rounding(scale, dynamic=False, strategy="tensor")
