"""Weights dequantized in blocks against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coreai_onnx.composites.compressed_weights import blockwise_shift_scale, streamed
from coreai_onnx.lower.build.composite_checks import CompositeCallError
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


def spread(blocks: torch.Tensor) -> torch.Tensor:
    """Return ``[2, 1]`` blocks over ``[4, 6]``."""
    return torch.from_numpy(np.kron(blocks.numpy(), np.ones((2, 6), blocks.numpy().dtype)))


@pytest.mark.parametrize("bits", [8, 6, 4, 3, 2, 1])
@pytest.mark.parametrize("signed", [False, True])
def test_the_formulas_hold(bits: int, signed: bool) -> None:
    least = -(1 << (bits - 1)) if signed else 0
    x = torch.randint(least, least + (1 << bits), (4, 6))
    scale, minval = torch.rand(2, 1), torch.randn(2, 1)
    zeros = torch.randint(least, least + (1 << bits), (2, 1), dtype=torch.int16)
    codes = streamed(x - least, bits)
    layout = {"bits": bits, "shape": (4, 6), "minimum": least}
    assert_close(blockwise_shift_scale(scale, codes, **layout), x * spread(scale))
    assert_close(
        blockwise_shift_scale(scale, codes, zeros, **layout), (x - spread(zeros)) * spread(scale)
    )
    actual = blockwise_shift_scale(scale, codes, None, minval, **layout)
    assert_close(actual, (x - least) * spread(scale) + spread(minval))


def test_the_result_is_rounded_once() -> None:
    scale, minval = torch.tensor([0.1]).half(), torch.tensor([0.3]).half()
    codes = torch.arange(256, dtype=torch.uint8)
    actual = blockwise_shift_scale(scale, codes, None, minval, shape=(256,))
    assert_close(actual, (torch.arange(256) * scale.float() + minval.float()).half())


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(2, 1), (8,)], {"shape": (8,)}, "scale has 2 axes of blocks, the weight has 1 axes"),
        ([(3,), (8,)], {"shape": (8,)}, "scale has 3 blocks along axis 0, which do not divide 8"),
        ([(1,), (8,)], {"shape": (8,), "bits": 7}, "bits is 7, not one of"),
        ([(2,), (8,), (1,)], {"shape": (8,)}, r"zero_point has shape \[1\], scale \[2\]"),
        ([(2,), (8,), (2,), (2,)], {"shape": (8,)}, "zero_point and minval exclude each other"),
    ],
)
def test_a_wrong_call_is_an_error(shapes, attributes, message) -> None:
    case = Case("blockwise_shift_scale", tuple(shapes), attributes, {1: torch.uint8}, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)
