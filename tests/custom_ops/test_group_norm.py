"""group_norm through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.channel_norms import GROUP_NORM as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.support.tolerances import assert_close

CASES = [
    # input, num_groups
    ((2, 6), 3),
    ((2, 6), 1),
    ((1, 8, 5), 2),
    ((3, 4, 7, 9), 4),
    ((2, 32, 16, 17), 8),
    ((1, 6, 2, 3, 4), 2),
    ((1, 1, 70001), 1),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", ["", "scale", "bias", "scale bias", "wide"])
@pytest.mark.parametrize(("shape", "groups"), CASES)
def test_agrees_with_the_reference(kernels, shape, groups, affine, dtype):
    x = (torch.randn(shape) * 2 + 3).to(dtype)
    other = torch.float32 if affine == "wide" else dtype
    scale, bias = (torch.randn(shape[1]).to(other) for _ in range(2))
    inputs = [
        x,
        scale if affine not in ("", "bias") else None,
        None if affine in ("", "scale") else bias,
    ]
    actual = run_op(kernels, "group_norm", inputs, num_groups=groups, eps=2.0**-17, threads=2)
    wanted = COMPOSITE.reference(*(double(t) for t in inputs), num_groups=groups, eps=2.0**-17).to(
        dtype
    )
    assert_close(actual, wanted)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (2, 0, 3)])
def test_empty(kernels, shape):
    assert run_op(kernels, "group_norm", [torch.randn(shape)], num_groups=2).shape == shape


def test_defaults_and_a_large_mean(kernels):
    x = torch.randn(2, 4, 300) + 1000
    wanted = torch.nn.functional.group_norm(x.double(), 1).float()
    # A place of float32 at 1000 is 6e-5; the mean is rounded twice.
    assert (run_op(kernels, "group_norm", [x]) - wanted).abs().max() < 2 * 6.2e-5


X = torch.ones(2, 6, 3)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([torch.ones(6)], {}, r"input of shape \[6\] must have rank 2 at least"),
        ([X], {"num_groups": 4}, r"num_groups is 4, which does not divide .* \[2, 6, 3\]"),
        ([X], {"num_groups": 0}, "num_groups is 0, which does not divide"),
        ([X], {"num_groups": -2}, "num_groups is -2, which does not divide"),
        ([X, torch.ones(3)], {}, r"scale of shape \[3\] must have one element for each channel"),
        ([X, None, torch.ones(1, 6)], {}, r"bias of shape \[1, 6\] must have one element"),
        ([X, torch.ones(6, dtype=torch.int64)], {}, "scale is int64, expected"),
        ([X], {"num_groups": 2.0}, "attribute num_groups is 2, expected an int"),
        ([X], {"eps": 1}, "attribute eps is 1, expected a float"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, attributes, message):
    with pytest.raises(Exception, match=rf"group_norm: .*{message}"):
        run_op(kernels, "group_norm", inputs, **attributes)
