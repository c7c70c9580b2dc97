"""layer_norm through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.norms import LAYER_NORM as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.support.tolerances import assert_close

CASES = [
    # input, scale, bias, axes
    ((5,), (5,), (5,), [-1]),
    ((2, 3, 64), None, None, [-1]),
    ((2, 3, 64), (64,), None, [2]),
    ((2, 3, 64), None, (64,), [-1]),
    ((2, 3, 64), (64,), (1,), [-1]),
    ((2, 3, 64), (1,), (64,), [-1]),
    ((2, 4, 3, 17), (4, 1, 17), (17,), [-1]),
    ((2, 4, 3, 17), (17,), (2, 1, 3, 17), [-1]),
    ((2, 3, 4, 5), (4, 5), (4, 5), [-2, -1]),
    ((2, 3, 4, 5), (4, 1), (5,), [2, 3]),
    ((700, 100), (700, 1), (100,), [1]),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "scale_shape", "bias_shape", "axes"), CASES)
@pytest.mark.parametrize("wide", ["", "scale", "bias", "both"])
def test_agrees_with_the_reference(kernels, shape, scale_shape, bias_shape, axes, wide, dtype):
    def parameter(size, name):
        if size is None:
            return None
        return torch.randn(size).to(torch.float32 if wide in (name, "both") else dtype)

    x = torch.randn(shape).to(dtype)
    scale, bias = parameter(scale_shape, "scale"), parameter(bias_shape, "bias")
    actual = run_op(kernels, "layer_norm", [x, scale, bias], axes=axes, eps=2.0**-17, threads=2)
    expected = COMPOSITE.reference(double(x), double(scale), double(bias), axes=axes, eps=2.0**-17)
    assert_close(actual, expected.to(dtype))


def test_a_large_mean_keeps_the_variance(kernels):
    # Exact in float32, as are its mean and its variance; a mean of squares would have no bits left.
    x = 3000 + torch.tensor([1.0, -1.0]).repeat(4, 32)
    expected = COMPOSITE.reference(double(x))
    assert_close(run_op(kernels, "layer_norm", [x]), expected.float())


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)])
def test_empty(kernels, shape):
    parameter = torch.randn(shape[-1])
    actual = run_op(kernels, "layer_norm", [torch.randn(shape), parameter, parameter])
    assert actual.shape == torch.Size(shape)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (
            [torch.ones(2, 3), torch.ones(4)],
            {},
            r"scale of shape \[4\] does not broadcast .*\[2, ",
        ),
        ([torch.ones(2, 3), None, torch.ones(4)], {}, r"bias of shape \[4\] does not broadcast"),
        (
            [torch.ones(2, 3), None, torch.ones(3, dtype=torch.int64)],
            {},
            "bias is int64, expected float",
        ),
        (
            [torch.ones(2, 3)],
            {"axes": [0]},
            r"attribute axes is \[0\], which are not the trailing axes .*\[2, 3\]",
        ),
        ([torch.ones(2, 3)], {"axes": [2]}, r"attribute axes is \[2\], of which 2 is out of range"),
        ([torch.ones(2, 3)], {"eps": 1}, "attribute eps is 1, expected a float"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, attributes, message):
    with pytest.raises(Exception, match=rf"layer_norm: .*{message}"):
        run_op(kernels, "layer_norm", inputs, **attributes)
