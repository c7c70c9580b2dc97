"""rms_norm through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.norms import RMS_NORM as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.support.tolerances import assert_close

CASES = [
    # input, scale, axes
    ((5,), (5,), [-1]),
    ((2, 3, 64), None, [-1]),
    ((2, 3, 64), (64,), [2]),
    ((2, 3, 64), (1,), [-1]),
    ((2, 4, 3, 17), (4, 1, 17), [-1]),
    ((2, 4, 3, 17), (2, 1, 3, 1), [-1]),
    ((2, 3, 4, 5), (4, 5), [-2, -1]),
    ((2, 3, 4, 5), (3, 4, 1), [-1, -2]),
    ((2, 3, 4, 5), (4, 1), [2, 3]),
    ((2, 3, 4), (2, 3, 4), [0, 1, 2]),
    ((700, 100), (700, 1), [1]),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wide_scale", [False, True], ids=["own", "wide"])
@pytest.mark.parametrize(("shape", "scale_shape", "axes"), CASES)
def test_agrees_with_the_reference(kernels, shape, scale_shape, axes, wide_scale, dtype):
    x = torch.randn(shape).to(dtype)
    scale = None
    if scale_shape is not None:
        scale = torch.randn(scale_shape).to(torch.float32 if wide_scale else dtype)
    actual = run_op(kernels, "rms_norm", [x, scale], axes=axes, eps=2.0**-17, threads=2)
    expected = COMPOSITE.reference(double(x), double(scale), axes=axes, eps=2.0**-17)
    assert_close(actual, expected.to(dtype))


@pytest.mark.parametrize("scale_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scale_of_any_float_type(kernels, dtype, scale_dtype):
    x, scale = torch.randn(3, 20).to(dtype), torch.randn(20).to(scale_dtype)
    actual = run_op(kernels, "rms_norm", [x, scale], eps=2.0**-17)
    expected = COMPOSITE.reference(x, scale, eps=2.0**-17)
    assert_close(actual, expected)


def test_defaults(kernels):
    x = torch.randn(3, 4) * 1e-3
    expected = COMPOSITE.reference(double(x))
    assert_close(run_op(kernels, "rms_norm", [x]), expected.float())
    assert_close(run_op(kernels, "rms_norm", [x], axes=-1, version=1), expected.float())


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4), (0, 0)])
def test_empty(kernels, shape):
    x, scale = torch.randn(shape), torch.randn(shape[-1])
    actual = run_op(kernels, "rms_norm", [x, scale])
    assert actual.shape == torch.Size(shape)


@pytest.mark.parametrize("shape", [(0, 1 << 40), (1 << 40, 0)])
def test_empty_with_a_size_beyond_memory(kernels, shape):
    actual = run_op(kernels, "rms_norm", [torch.empty(shape), torch.ones(1)])
    assert actual.shape == torch.Size(shape)


def test_unknown_rank_at_load(kernels):
    x = torch.randn(2, 3)
    actual = run_op(kernels, "rms_norm", [x], rank_known=False)
    assert_close(actual, COMPOSITE.reference(double(x)).float())


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (
            [torch.ones(2, 3), torch.ones(4)],
            {},
            r"scale of shape \[4\] does not broadcast .*\[2, ",
        ),
        ([torch.ones(3), torch.ones(1, 3)], {}, r"scale of shape \[1, 3\] does not broadcast"),
        (
            [torch.ones(2, 3), torch.ones(3, dtype=torch.int64)],
            {},
            "scale is int64, expected",
        ),
        ([torch.ones(2, 3), torch.ones(3, dtype=torch.bool)], {}, "scale is bool, expected float"),
        (
            [torch.ones(2, 3)],
            {"axes": [0]},
            r"attribute axes is \[0\], which are not the trailing axes .*\[2, 3\]",
        ),
        (
            [torch.ones(2, 3, 4)],
            {"axes": [-1, -3]},
            r"attribute axes is \[-1, -3\], which are not the trailing axes",
        ),
        ([torch.ones(2, 3)], {"axes": [-1, 1]}, "are not the trailing axes"),
        (
            [torch.ones(2, 3)],
            {"axes": [2]},
            r"attribute axes is \[2\], of which 2 is out of range .*\[2, 3\]",
        ),
        ([torch.ones(2, 3)], {"axes": [-9223372036854775808]}, "is out of range"),
        ([torch.tensor(1.0)], {}, r"attribute axes is \[-1\], of which -1 is out of range .*\[\]"),
        ([torch.ones(2, 3)], {"axes": "x"}, 'attribute axes is "x", expected a list of ints'),
        ([torch.ones(2, 3)], {"eps": 1}, "attribute eps is 1, expected a float"),
        ([torch.ones(2, 3)], {"eps": "small"}, 'attribute eps is "small", expected a float'),
        ([torch.ones(2, 3)], {"version": 2}, "version is 2; these kernels know versions 1 to 1"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, attributes, message):
    with pytest.raises(Exception, match=rf"rms_norm: .*{message}"):
        run_op(kernels, "rms_norm", inputs, **attributes)


def test_a_refusal_names_the_variant(kernels):
    with pytest.raises(Exception, match=r"rms_norm\.wide_scale: attribute eps"):
        run_op(kernels, "rms_norm.wide_scale", [torch.ones(2, 3)], eps=[1.0, 2.0])
