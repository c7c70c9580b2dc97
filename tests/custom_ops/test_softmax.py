"""softmax through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.activations import SOFTMAX as COMPOSITE
from tests.custom_ops.single_op import DTYPES, run_op
from tests.support.tolerances import assert_close

SHAPES = [(1,), (17,), (3, 5, 7), (2, 33000), (70, 1000), (0,), (3, 0, 2), (3, 0)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_reference(kernels, shape, dtype):
    x = (torch.randn(shape) * 4).to(dtype)
    actual = run_op(kernels, "softmax", [x], threads=2)
    assert_close(actual, COMPOSITE.reference(x.double()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hidden_keys_and_nan_stay_in_their_rows(kernels, dtype):
    x = torch.randn(6, 70).to(dtype)
    x[1, 3:] = float("-inf")
    x[2] = float("-inf")
    x[3, 69] = float("nan")
    x[4, 0] = float("inf")
    expected = COMPOSITE.reference(x.double()).to(dtype)
    assert expected[[2, 3, 4]].isnan().all()
    assert_close(run_op(kernels, "softmax", [x]), expected)


def test_a_number_has_no_axis(kernels):
    with pytest.raises(Exception, match=r"softmax: input of shape \[\] must have rank 1 at least"):
        run_op(kernels, "softmax", [torch.tensor(1.0)])
