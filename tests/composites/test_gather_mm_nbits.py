"""Gathered products with few-bit weights against ``gather_mm`` with the weight written out."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.few_bits import gather_mm_nbits, linear_nbits
from coreai_onnx.composites.products import gather_mm
from coreai_onnx.lower.build.composite_checks import CompositeCallError
from coreai_onnx.model.packed_codes import pack_codes
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_it_is_gather_mm_with_the_values_of_the_codes(bits: int) -> None:
    shape = (4, 6, 2, 16)
    codes = torch.randint(0, 1 << bits, shape, dtype=torch.uint8)
    zeros = torch.randint(0, 1 << bits, shape[:3], dtype=torch.uint8)
    scales, palette = torch.rand(shape[:3]), torch.randn(1 << bits)
    given = torch.from_numpy(pack_codes(codes.numpy(), bits))
    x, chosen = torch.randn(5, 1, 1, 32), torch.randint(0, 4, (5, 2))
    attributes = {"bits": bits, "group_size": 16}
    steps = codes.float()
    for parts, values in (
        ((), steps - 2 ** (bits - 1)),
        ((zeros,), steps - zeros[..., None].float()),
        ((None, palette), palette[codes.long()]),
    ):
        weight = (values * scales[..., None]).flatten(-2)
        expected = gather_mm(x, weight, None, chosen, transpose_rhs=1)
        assert_close(gather_mm_nbits(x, given, scales, chosen, *parts, **attributes), expected)


@pytest.mark.parametrize("rounding", [0, 8])
def test_each_row_is_the_linear_layer_of_its_expert(rounding: int) -> None:
    codes = torch.randint(0, 256, (3, 6, 2, 16), dtype=torch.uint8)
    scales, zeros = torch.rand(3, 6, 2), torch.randint(0, 16, (3, 6, 2), dtype=torch.uint8)
    x, chosen = torch.randn(4, 1, 64), torch.tensor([2, 0, 2, 1])
    actual = gather_mm_nbits(x, codes, scales, chosen, zeros, activation_bits=rounding)
    for row, expert in enumerate(chosen.tolist()):
        parts = (codes[expert], scales[expert], zeros[expert])
        assert_close(actual[row], linear_nbits(x[row], *parts, activation_bits=rounding))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_keeps_the_dtype_and_computes_in_a_wide_one(dtype: torch.dtype) -> None:
    codes = torch.randint(0, 256, (3, 6, 2, 16), dtype=torch.uint8)
    scales, x = torch.rand(3, 6, 2).bfloat16(), torch.randn(4, 1, 64).to(dtype)
    chosen = torch.tensor([2, 0, 2, 1])
    wide = gather_mm_nbits(x.double(), codes, scales.double(), chosen)
    assert_close(gather_mm_nbits(x, codes, scales, chosen), wide.to(dtype))


X, CODES, GROUPS, CHOSEN = (3, 1, 64), (5, 6, 2, 16), (5, 6, 2), (3,)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([X, CODES, GROUPS, CHOSEN], {"bits": 5}, r"bits is 5, not one of \(8, 4, 3, 2\)"),
        ([X, CODES, GROUPS, CHOSEN], {"activation_bits": 4}, r"activation_bits is 4"),
        ([X, CODES, GROUPS, CHOSEN], {"group_size": 0}, "group_size is 0: 4-bit"),
        ([X, (5, 6, 2, 15), GROUPS, CHOSEN], {}, "15 bytes per group, 32 codes of 4 bits need 16"),
        ([(3, 1, 63), CODES, GROUPS, CHOSEN], {}, "lhs has 63 columns, codes have 2 groups of 32"),
        ([X, CODES, (4, 6, 2), CHOSEN], {}, r"scales has shape \[4, 6, 2\]"),
        ([X, CODES[1:], GROUPS[1:], CHOSEN], {}, "codes has rank 3, at least 4 are needed"),
        ([X, CODES, GROUPS, CHOSEN, GROUPS, (16,)], {}, "zero_points and palette exclude each"),
        ([X, CODES, GROUPS, CHOSEN, None, (15,)], {}, "palette has 15 values, 4-bit codes need"),
        ([(64,), CODES, GROUPS, CHOSEN], {}, "lhs has rank 1"),
    ],
)
def test_a_wrong_call_is_an_error(shapes, attributes, message) -> None:
    dtypes = {1: torch.uint8, 3: torch.int64}
    case = Case("gather_mm_nbits", tuple(shapes), attributes, dtypes, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)
