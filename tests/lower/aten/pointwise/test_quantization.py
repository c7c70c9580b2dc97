"""Lowerings of torch's decomposed quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines quantized_decomposed

import coreai_onnx
from tests.lower.checking import check, op_types
from tests.support.tolerances import assert_close

Q = torch.ops.quantized_decomposed
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 3
INT8 = torch.tensor([-128, -8, -1, 0, 1, 127] * 4, dtype=torch.int8).reshape(4, 6)
UINT8 = torch.tensor([0, 1, 7, 8, 200, 255] * 4, dtype=torch.uint8).reshape(4, 6)
SCALE, ZERO = torch.tensor(0.0625), torch.tensor(3)
"""A power of two: torch multiplies by its reciprocal, onnxruntime divides by it."""
SCALES, ZEROS = torch.rand(4, 2) + 0.1, torch.randint(-9, 9, (4, 2), dtype=torch.int32)
OPSETS = pytest.mark.parametrize("opset", [18, 23])


def quantized(dtype: torch.dtype, low: int, high: int) -> Callable[..., Any]:
    return lambda x: Q.quantize_per_tensor(x, 0.0625, 3, low, high, dtype)


@OPSETS
@pytest.mark.parametrize(
    ("dtype", "low", "high", "ops"),
    [
        (torch.int8, -128, 127, ["QuantizeLinear"]),
        (torch.uint8, 0, 255, ["QuantizeLinear"]),
        (torch.int8, -8, 7, ["QuantizeLinear", "Clip"]),
        (torch.int32, -300, 300, ["Div", "Round", "Add", "Clip", "Cast"]),
    ],
)
def test_numbers_become_steps(
    dtype: torch.dtype, low: int, high: int, ops: list[str], opset: int
) -> None:
    model = check(quantized(dtype, low, high), torch.cat([X, 1e4 * X]), opset=opset)
    assert op_types(model) == ops


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16])
@pytest.mark.parametrize(("low", "high"), [(None, None), (2, 300)])
def test_words_need_opset_21(dtype: torch.dtype, low: int | None, high: int | None) -> None:
    info = torch.iinfo(dtype)
    low, high = info.min if low is None else low, info.max if high is None else high
    x = torch.cat([X, 1e4 * X])

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = Q.quantize_per_tensor(x, 0.0625, 300, low, high, dtype)
        return steps.int(), Q.dequantize_per_tensor(steps, 0.0625, 300, low, high, dtype)

    assert "QuantizeLinear" not in op_types(check(function, x, opset=18))
    linear = check(function, x, opset=23)
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(op_types(linear))


@OPSETS
def test_parameters_may_be_tensors(opset: int) -> None:
    def back_and_forth(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Any:
        steps = Q.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        return Q.dequantize_per_tensor.tensor(steps, scale, zero, -128, 127, torch.int8)

    check(back_and_forth, X, SCALE, ZERO, opset=opset)
    check(back_and_forth, X, SCALE.reshape(1), ZERO.reshape(1), opset=opset)
    ends = torch.tensor(-128), torch.tensor(127)
    check(
        lambda q, s, z: Q.dequantize_per_tensor.tensor2(q, s, z, *ends, torch.int8),
        *(INT8, SCALE, ZERO),
    )
    check(
        lambda x, s, z: Q.quantize_per_tensor.tensor2(x, s, z, *ends, torch.int8),
        *(X, SCALE, ZERO),
    )


POWERS = torch.tensor([0.25, 0.125, 0.5, 0.0625])
"""Scales per channel whose reciprocals are exact."""


@OPSETS
@pytest.mark.parametrize(("axis", "scales"), [(0, POWERS), (1, torch.cat([POWERS, POWERS[:2]]))])
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(torch.int8, -128, 127), (torch.int8, -8, 7), (torch.uint8, 0, 15), (torch.int32, -9, 9)],
)
def test_channels(
    dtype: torch.dtype, low: int, high: int, axis: int, scales: torch.Tensor, opset: int
) -> None:
    zeros = torch.arange(len(scales)) % 4

    def function(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        steps = Q.quantize_per_channel(x, s, z, axis, low, high, dtype)
        back = Q.dequantize_per_channel(steps, s, z, axis, low, high, dtype)
        fake = Q.fake_quant_per_channel(x, s, z, axis, low, high)
        return steps, back, fake, Q.dequantize_per_channel(steps, s, None, axis, low, high, dtype)

    model = check(function, X, scales, zeros, opset=opset)
    assert ("QuantizeLinear" in op_types(model)) or dtype == torch.int32
    check(function, X, scales, zeros.int(), opset=opset)


def test_channels_with_fractional_zero_points() -> None:
    check(
        lambda q, s, z: Q.dequantize_per_channel(q, s, z, 0, -128, 127, torch.int8),
        *(INT8, POWERS, torch.tensor([0.5, 0.25, 1, 0])),
    )


def test_a_bias_of_32_bits_has_dequantize_linear_if_its_zero_point_is_known() -> None:
    class Bias(torch.nn.Module):
        def __init__(self, zero: int) -> None:
            super().__init__()
            self.register_buffer("zeros", torch.full((6,), zero))
            self.register_buffer("scales", torch.rand(6))
            steps = torch.tensor([-70000, 0, 1, 5, 70000, 2**24])
            self.register_buffer("steps", steps.int())

        def forward(self, x: torch.Tensor) -> Any:
            ends = -(2**31), 2**31 - 1, torch.int32
            rows = Q.dequantize_per_tensor(self.steps, 0.25, 0, *ends)
            return (
                x + rows + Q.dequantize_per_channel(self.steps, self.scales, self.zeros, 0, *ends)
            )

    assert op_types(check(Bias(0), X)).count("DequantizeLinear") == 2
    assert op_types(check(Bias(3), X)).count("DequantizeLinear") == 1


def test_activations_of_32_bits_have_plain_ops() -> None:
    """onnxruntime cannot load a product or a view of values that are dequantized from int32."""

    def words(x: torch.Tensor, weight: torch.Tensor) -> Any:
        ends = 0, 65535, torch.int32
        steps = Q.quantize_per_tensor(x, 0.001, 0, *ends)
        return (Q.dequantize_per_tensor(steps, 0.001, 0, *ends) @ weight).unsqueeze(0)

    assert "DequantizeLinear" not in op_types(check(words, X.reshape(2, 2, 6), X.T.contiguous()))


def test_groups_of_columns_are_quantized() -> None:
    scales, zeros = torch.tensor([[0.5, 0.25]] * 4), torch.tensor([[1, -2]] * 4)
    check(
        lambda x, s, z: Q.quantize_per_channel_group(x, s, z, -8, 7, torch.int8, 3),
        *(X, scales, zeros),
    )


def test_a_conversion_that_is_not_fused() -> None:
    check(lambda x: Q.convert_element_type.no_fuse(x, torch.int32), X)


@pytest.mark.parametrize(
    ("steps", "dtype", "out"),
    [
        (INT8, torch.int8, None),
        (UINT8, torch.uint8, torch.float32),
        (INT8, torch.int8, torch.float16),
        (INT8.int(), torch.int32, None),
    ],
)
def test_steps_become_numbers(
    steps: torch.Tensor, dtype: torch.dtype, out: torch.dtype | None
) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    model = check(
        lambda q: Q.dequantize_per_tensor(q, 0.07, 3, low, high, dtype, out_dtype=out), steps
    )
    assert ("DequantizeLinear" in op_types(model)) == (out != torch.float16 and steps.dtype == dtype
                                                       and dtype != torch.int32)  # fmt: skip


@OPSETS
@pytest.mark.parametrize("zeros", [ZEROS, ZEROS.float() + 0.5, None])
def test_groups_of_columns(zeros: torch.Tensor | None, opset: int) -> None:
    def function(q: torch.Tensor, scales: torch.Tensor, *zeros: torch.Tensor) -> Any:
        zero = zeros[0] if zeros else None
        return Q.dequantize_per_channel_group(
            q, scales, zero, -128, 127, torch.int8, 3, torch.float32
        )

    check(function, INT8, SCALES, *([] if zeros is None else [zeros]), opset=opset)


def test_a_group_wider_than_the_rows() -> None:
    def function(q: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> Any:
        return Q.dequantize_per_channel_group(q, s, z, 0, 255, torch.uint8, 32, torch.float16)

    check(function, UINT8, SCALES[:, :1], ZEROS[:, :1])


def test_groups_of_dynamic_rows() -> None:
    rows, columns = torch.export.Dim("rows"), torch.export.Dim("columns")
    check(
        lambda q, s: Q.dequantize_per_channel_group(
            q, s, None, -8, 7, torch.int8, 3, torch.float32
        ),
        *(INT8, SCALES),
        dynamic_shapes=({0: rows, 1: 3 * columns}, {0: rows, 1: columns}),
        others=[(torch.cat([INT8] * 2, 1)[:3], torch.rand(3, 4))],
    )


BYTES = (-128, 127, torch.int8)
"""The last arguments of most ops."""
GROUPS = torch.tensor([[0.5, 0.25]] * 4), torch.tensor([[1, -2]] * 4)
ROWS = torch.tensor([[0.25], [0.5], [2], [1]], dtype=torch.float64), torch.tensor([[1], [-9]] * 2)
CHANNELS = POWERS, torch.tensor([1, 2, 0, 3])
LIMITS = torch.tensor(-128), torch.tensor(127)


def _as_exported(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return results in the dtypes that torch exports, which are not those that it computes."""
    return pair[0].double(), pair[1].long()


EVERY: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "_choose_qparams_per_token_asymmetric_impl": (
        lambda x: Q._choose_qparams_per_token_asymmetric_impl(x, torch.int8),
        (X,),
    ),
    "choose_qparams.tensor": (
        lambda x: Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8),
        (X,),
    ),
    "choose_qparams_per_token": (
        lambda x: _as_exported(Q.choose_qparams_per_token(x, torch.int8)),
        (X,),
    ),
    "choose_qparams_per_token_asymmetric": (
        lambda x: Q.choose_qparams_per_token_asymmetric(x, torch.int8),
        (X,),
    ),
    "choose_qparams_symmetric.tensor": (
        lambda x: Q.choose_qparams_symmetric.tensor(x, -127, 127, 1e-5, torch.int8),
        (X,),
    ),
    "convert_element_type.no_fuse": (
        lambda x: Q.convert_element_type.no_fuse(x, torch.int32),
        (X,),
    ),
    "dequantize_per_channel": (
        lambda q, s, z: Q.dequantize_per_channel(q, s, z, 0, *BYTES),
        (INT8, *CHANNELS),
    ),
    "dequantize_per_channel_group": (
        lambda q, s, z: Q.dequantize_per_channel_group(q, s, z, *BYTES, 3, torch.float32),
        (INT8, *GROUPS),
    ),
    "dequantize_per_tensor": (lambda q: Q.dequantize_per_tensor(q, 0.25, 3, *BYTES), (INT8,)),
    "dequantize_per_tensor.tensor": (
        lambda q, s, z: Q.dequantize_per_tensor.tensor(q, s, z, *BYTES),
        (INT8, SCALE, ZERO),
    ),
    "dequantize_per_tensor.tensor2": (
        lambda q, s, z, low, high: Q.dequantize_per_tensor.tensor2(q, s, z, low, high, torch.int8),
        (INT8, SCALE, ZERO, *LIMITS),
    ),
    "dequantize_per_token": (
        lambda q, s, z: Q.dequantize_per_token(q, s, z, *BYTES, torch.float32),
        (INT8, *ROWS),
    ),
    "fake_quant_per_channel": (
        lambda x, s, z: Q.fake_quant_per_channel(x, s, z, 0, -128, 127),
        (X, *CHANNELS),
    ),
    "quantize_per_channel": (
        lambda x, s, z: Q.quantize_per_channel(x, s, z, 0, *BYTES),
        (X, *CHANNELS),
    ),
    "quantize_per_channel_group": (
        lambda x, s, z: Q.quantize_per_channel_group(x, s, z, -8, 7, torch.int8, 3),
        (X, *GROUPS),
    ),
    "quantize_per_tensor": (lambda x: Q.quantize_per_tensor(x, 0.25, 3, *BYTES), (X,)),
    "quantize_per_tensor.tensor": (
        lambda x, s, z: Q.quantize_per_tensor.tensor(x, s, z, *BYTES),
        (X, SCALE, ZERO),
    ),
    "quantize_per_tensor.tensor2": (
        lambda x, s, z, low, high: Q.quantize_per_tensor.tensor2(x, s, z, low, high, torch.int8),
        (X, SCALE, ZERO, *LIMITS),
    ),
    "quantize_per_token": (
        lambda x, s, z: Q.quantize_per_token(x, s, z, *BYTES),
        (X, *ROWS),
    ),
}
"""A call of every op, by the name in its schema."""


def test_there_is_a_call_of_every_op() -> None:
    schemas = torch._C._jit_get_all_schemas()
    own = [schema for schema in schemas if schema.name.startswith("quantized_decomposed::")]
    names = {
        f"{s.name.partition('::')[2]}.{s.overload_name}".removesuffix(".")
        for s in own
        if s.overload_name != "out"
    }
    assert names == set(EVERY)


@pytest.mark.parametrize("decomposed", [False, True], ids=["raw", "decomposed"])
@pytest.mark.parametrize("name", EVERY)
def test_every_op_in_raw_and_decomposed_programs(name: str, decomposed: bool) -> None:
    function, args = EVERY[name]

    class Model(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    exported = torch.export.export(Model(), args)
    program = coreai_onnx.convert(exported.run_decompositions() if decomposed else exported)
    result = function(*args)
    wanted = list(result) if isinstance(result, tuple) else [result]
    assert_close(list(program.run(*args, kernels=False)), wanted)
