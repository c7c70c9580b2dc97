"""convolution through onnxruntime against its declared reference in double."""

from __future__ import annotations

import math

import pytest
import torch
from onnx import numpy_helper

from coreai_onnx.composites.products import CONVOLUTION as COMPOSITE
from tests.custom_ops.single_op import DTYPES, open_session, run_op, single_op_model
from tests.support.tolerances import assert_close

CASES = {
    # input, weight, whether there is a bias, attributes
    "one_number": ((1, 1, 1, 1), (1, 1, 1, 1), True, {}),
    "points": ((2, 20, 7, 9), (37, 20, 1, 1), True, {}),
    "same": ((2, 5, 13, 17), (9, 5, 3, 3), True, {"padding": [1, 1, 1, 1]}),
    "few_filters": ((3, 5, 13, 17), (3, 5, 3, 3), False, {"padding": [1, 1, 1, 1]}),
    "many_filters": ((1, 30, 5, 6), (450, 30, 3, 3), True, {"padding": [1, 1, 1, 1]}),
    "deep": ((1, 70, 12, 10), (20, 70, 3, 3), True, {"padding": [1, 1, 1, 1]}),
    "strides": ((2, 3, 31, 30), (16, 3, 7, 7), True, {"stride": [2, 2], "padding": [3, 3, 3, 3]}),
    "unequal": (
        (2, 4, 14, 15),
        (8, 4, 2, 5),
        True,
        {"stride": [1, 3], "padding": [0, 2, 1, 3], "dilation": [3, 2]},
    ),
    "groups": ((2, 12, 9, 8), (30, 4, 3, 3), True, {"groups": 3, "padding": [1, 1, 1, 1]}),
    "few_windows": ((2, 70, 7, 7), (200, 70, 3, 3), True, {"padding": [1, 1, 1, 1]}),
    "few_windows_of_groups": (
        (3, 24, 9, 8),
        (144, 8, 3, 3),
        True,
        {"groups": 3, "padding": [1, 1, 1, 1], "stride": [2, 1]},
    ),
    "four_windows": ((2, 30, 5, 5), (200, 30, 3, 3), False, {"stride": [2, 2]}),
    "many_windows": ((2, 20, 70, 60), (24, 20, 3, 3), True, {"padding": [1, 1, 1, 1]}),
    "padding_below": ((1, 20, 70, 33), (24, 20, 3, 3), True, {"padding": [0, 0, 2, 0]}),
    "padding_on_the_right": ((1, 5, 1, 3001), (50, 5, 1, 5), True, {"padding": [0, 0, 0, 3]}),
    "long_row": ((1, 20, 1, 3000), (50, 20, 1, 5), True, {"stride": [1, 2]}),
    "one_channel": ((2, 1, 1, 400), (40, 1, 1, 10), True, {"stride": [1, 5]}),
    "far_points": ((2, 20, 7, 9), (37, 20, 1, 1), True, {"stride": [2, 3]}),
    "padded_points": ((2, 20, 3, 3), (37, 20, 1, 1), True, {"padding": [0, 1, 2, 0]}),
    "planes": ((2, 6, 14, 20), (6, 1, 7, 7), True, {"groups": 6, "padding": [3, 3, 3, 3]}),
    "planes_small": ((2, 6, 7, 7), (6, 1, 3, 3), False, {"groups": 6, "padding": [1, 1, 1, 1]}),
    "planes_twice": ((1, 3, 40, 33), (6, 1, 3, 2), True, {"groups": 3, "stride": [2, 1]}),
    "planes_wide": ((1, 2, 3, 700), (2, 1, 1, 4), True, {"groups": 2, "padding": [0, 3, 0, 0]}),
    "planes_stride": ((1, 2, 9, 33), (2, 1, 3, 3), True, {"groups": 2, "stride": [3, 2]}),
    "planes_far": ((1, 2, 4, 700), (2, 1, 1, 2), True, {"groups": 2, "dilation": [1, 300]}),
    "sequence": ((2, 20, 1, 100), (24, 20, 1, 5), True, {"padding": [0, 2, 0, 2]}),
    "only_padding": ((1, 2, 2, 2), (5, 2, 3, 3), True, {"padding": [5, 5, 5, 5]}),
    "only_padding_of_many": ((1, 2, 2, 2), (20, 2, 3, 3), True, {"padding": [5, 5, 5, 5]}),
    "no_channels": ((1, 0, 4, 4), (5, 0, 2, 2), True, {}),
    "no_channels_of_many": ((1, 0, 4, 4), (20, 0, 2, 2), True, {}),
    "no_images": ((0, 3, 4, 4), (5, 3, 2, 2), True, {}),
    "no_filters": ((1, 3, 4, 4), (0, 3, 2, 2), True, {}),
}


def inputs_of(name: str, dtype: torch.dtype) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    x, weight, biased, _ = CASES[name]
    bias = torch.randn(weight[0]).to(dtype) if biased else None
    # Sums of ordinary size, in which rounding errors are those of numbers of that size.
    factors = torch.randn(weight) / max(1, math.prod(weight[1:])) ** 0.5
    return [torch.randn(x).to(dtype), factors.to(dtype), bias]


def double(inputs: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [None if x is None else x.double() for x in inputs]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(kernels, name, dtype):
    inputs, attributes = inputs_of(name, dtype), CASES[name][-1]
    actual = run_op(kernels, "convolution", inputs, threads=2, **attributes)
    if 0 in CASES[name][1]:  # torch refuses them
        bias = inputs[2]
        expected = bias[None, :, None, None].expand(1, len(bias), 3, 3).double()
    else:
        expected = COMPOSITE.reference(*double(inputs), **attributes)
    assert_close(actual, expected.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("name", ["few_filters", "many_filters", "many_windows", "planes"])
def test_a_residual_is_added_to_the_result(kernels, name, activation, dtype):
    inputs, attributes = inputs_of(name, dtype), CASES[name][-1]
    result = COMPOSITE.reference(*double(inputs), **attributes)
    inputs.append(torch.randn(result.shape).to(dtype))
    attributes = {**attributes, "activation": activation}
    actual = run_op(kernels, "convolution", inputs, threads=2, **attributes)
    expected = COMPOSITE.reference(*double(inputs), **attributes)
    assert_close(actual, expected.to(dtype))
    with_relu = {**attributes, "activation": "relu"}
    without = run_op(kernels, "convolution", inputs[:3], threads=2, **with_relu)
    assert_close(without, COMPOSITE.reference(*double(inputs[:3]), **with_relu).to(dtype))


@pytest.mark.parametrize("name", ["few_filters", "many_windows", "planes"])
def test_a_residual_gives_the_bits_of_a_sum(kernels, name):
    inputs, attributes = inputs_of(name, torch.float32), CASES[name][-1]
    plain = run_op(kernels, "convolution", inputs, **attributes)
    inputs.append(torch.randn(plain.shape))
    attributes = {**attributes, "activation": "relu"}
    assert run_op(kernels, "convolution", inputs, **attributes).equal((plain + inputs[3]).relu())


@pytest.mark.parametrize("name", ["same", "few_filters", "many_filters", "groups", "planes"])
def test_a_constant_weight_gives_the_same_bits(kernels, name):
    x, weight, bias = inputs_of(name, torch.float32)
    attributes = CASES[name][-1]
    expected = run_op(kernels, "convolution", [x, weight, bias], **attributes)
    model = single_op_model("convolution", [x, weight, bias], attributes)
    for constants in ({"in1", "in2"}, {"in1"}, {"in2"}):
        one = type(model).FromString(model.SerializeToString())
        for key, value in {"in1": weight, "in2": bias}.items():
            if value is not None and key in constants:
                one.graph.initializer.append(numpy_helper.from_array(value.numpy(), key))
        kept = [v for v in one.graph.input if v.name not in constants]
        del one.graph.input[:]
        one.graph.input.extend(kept)
        session = open_session(one, kernels, 1, "convolution")
        feeds = {"in0": x, "in1": weight, "in2": bias}
        names = {v.name for v in session.get_inputs()}
        found = session.run(None, {k: v.numpy() for k, v in feeds.items() if k in names})[0]
        assert torch.from_numpy(found).equal(expected), constants


@pytest.mark.parametrize("name", CASES)
def test_an_image_has_the_same_bits_alone(kernels, name):
    inputs, attributes = inputs_of(name, torch.float32), CASES[name][-1]
    whole = run_op(kernels, "convolution", inputs, threads=2, **attributes)
    for i in range(len(inputs[0])):
        alone = run_op(kernels, "convolution", [inputs[0][i : i + 1], *inputs[1:]], **attributes)
        assert alone.equal(whole[i : i + 1])


def test_nan_and_infinity_stay_in_their_windows(kernels):
    x, weight = torch.randn(1, 2, 9, 9), torch.randn(3, 2, 3, 3)
    x[0, 1, 4, 4], x[0, 0, 0, 8] = float("nan"), float("inf")
    actual = run_op(kernels, "convolution", [x, weight], padding=[1, 1, 1, 1])
    expected = COMPOSITE.reference(x.double(), weight.double(), padding=(1, 1, 1, 1))
    assert_close(actual, expected.float())


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        (((2, 3, 4), (1, 3, 1, 1)), {}, r"input of shape \[2, 3, 4\].* must have rank 4"),
        (((2, 3, 4, 4), (1, 3, 1)), {}, r"weight of shape \[1, 3, 1\] must have rank 4"),
        (((2, 3, 4, 4), (1, 2, 1, 1)), {}, "do not agree with attribute groups of 1"),
        (((2, 4, 4, 4), (3, 2, 1, 1)), {"groups": 2}, "do not agree with attribute groups of 2"),
        (((2, 3, 4, 4), (1, 3, 1, 1)), {"groups": 0}, "attribute groups is 0"),
        (((2, 3, 4, 4), (2, 3, 1, 1), (3,)), {}, r"bias of shape \[3\] must have one element"),
        (
            ((2, 3, 4, 4), (1, 3, 1, 1), (1,), (2, 1, 4, 1)),
            {},
            r"residual of shape \[2, 1, 4, 1\] must have the shape of the result, \[2, 1, 4, 4\]",
        ),
        (
            ((2, 3, 4, 4), (1, 3, 1, 1)),
            {"activation": "gelu"},
            'is "gelu", expected "none" or "relu"',
        ),
        (((2, 3, 4, 4), (1, 3, 5, 1)), {}, "has no window"),
        (((2, 3, 4, 4), (1, 3, 0, 1)), {}, "has no window"),
        (((2, 3, 4, 4), (1, 3, 3, 1)), {"dilation": [2, 1]}, "has no window"),
        (
            ((2, 3, 4, 4), (1, 3, 1, 1)),
            {"stride": [1]},
            r"stride is \[1\], expected 2 numbers of 1",
        ),
        (((2, 3, 4, 4), (1, 3, 1, 1)), {"stride": [0, 1]}, r"stride is \[0, 1\], expected 2"),
        (((2, 3, 4, 4), (1, 3, 1, 1)), {"padding": [0, 0, -1, 0]}, "expected 4 numbers of 0"),
        (((2, 3, 4, 4), (1, 3, 1, 1)), {"dilation": [1 << 40, 1]}, "expected 2 numbers of 1"),
        (
            ((2, 3, 4, 4), (1, 3, 1, 1)),
            {"padding": [1 << 20] * 4},
            r"padding .* has planes of more than 2\^30 elements",
        ),
        (
            ((2, 3, 4, 4), (1, 3, 1, 1)),
            {"padding": [0, (1 << 30) - 1, 0, 2]},
            r"no window, or more than 2\^30 elements",
        ),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, shapes, attributes, message):
    with pytest.raises(Exception, match=rf"convolution: .*{message}"):
        run_op(kernels, "convolution", [torch.ones(shape) for shape in shapes], **attributes)
