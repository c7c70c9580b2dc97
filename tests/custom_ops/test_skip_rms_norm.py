"""skip_rms_norm through onnxruntime against its declared reference."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.norms import SKIP_RMS_NORM as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op, run_op_outputs
from tests.support.tolerances import assert_close

OP = "skip_rms_norm"
CASES = [
    # input, scale, axes
    ((5,), (5,), [-1]),
    ((2, 3, 64), None, [-1]),
    ((2, 3, 64), (64,), [2]),
    ((2, 4, 3, 17), (4, 1, 17), [-1]),
    ((2, 4, 3, 17), (2, 1, 3, 1), [-1]),
    ((2, 3, 4, 5), (4, 5), [-2, -1]),
    ((700, 100), (100,), [1]),
    ((3, 5000), (5000,), [1]),
]


def expected(x, skip, *parameters, **attributes):
    """The norm in double of the rounded sum, and that sum."""
    total = x + skip
    zero = torch.zeros_like(total, dtype=torch.float64)
    result = COMPOSITE.reference(
        total.double(), zero, *(double(p) for p in parameters), **attributes
    )
    return result[0].to(x.dtype), total


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wide_scale", [False, True], ids=["own", "wide"])
@pytest.mark.parametrize(("shape", "scale_shape", "axes"), CASES)
def test_agrees_with_the_reference(kernels, shape, scale_shape, axes, wide_scale, dtype):
    x, skip = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    scale = None
    if scale_shape is not None:
        scale = torch.randn(scale_shape).to(torch.float32 if wide_scale else dtype)
    attributes = {"axes": axes, "eps": 2.0**-17}
    output, total = run_op_outputs(
        kernels, OP, [x, skip, scale], outputs=(True, True), threads=2, **attributes
    )
    wanted, wanted_total = expected(x, skip, scale, **attributes)
    assert total.equal(wanted_total)
    assert_close(output, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("outputs", [(True,), (True, False)], ids=str)
def test_the_sum_may_be_unused(kernels, outputs, dtype):
    x, skip, scale = (torch.randn(s).to(dtype) for s in ((300, 70), (300, 70), (70,)))
    (output,) = run_op_outputs(kernels, OP, [x, skip, scale], outputs=outputs)
    assert_close(output, expected(x, skip, scale)[0])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)])
def test_empty(kernels, shape):
    results = run_op_outputs(kernels, OP, [torch.randn(shape)] * 2, outputs=(True, True))
    assert [r.shape for r in results] == [torch.Size(shape)] * 2


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (
            [torch.ones(2, 3), torch.ones(3)],
            {},
            r"skip of shape \[3\] must have the shape \[2, 3\]",
        ),
        ([torch.ones(2, 3)] * 2 + [torch.ones(4)], {}, r"scale of shape \[4\] does not broadcast"),
        (
            [torch.ones(2, 3)] * 2,
            {"axes": [0]},
            r"attribute axes is \[0\], which are not the trailing axes",
        ),
        ([torch.ones(())] * 2, {}, r"attribute axes is \[-1\], of which -1 is out of range"),
        ([torch.ones(2, 3)] * 2, {"eps": 1}, "attribute eps is 1, expected a float"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, attributes, message):
    with pytest.raises(Exception, match=rf"skip_rms_norm: .*{message}"):
        run_op(kernels, OP, inputs, **attributes)
