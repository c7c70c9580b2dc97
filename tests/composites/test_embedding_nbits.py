"""Lookups in few-bit tables against the table written out."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.few_bits import embedding_nbits
from coreai_onnx.lower.build.composite_checks import CompositeCallError
from coreai_onnx.model.packed_codes import pack_codes
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_rows_are_those_of_the_table(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (7, 2, 16), dtype=torch.uint8)
    scales, zeros = torch.rand(7, 2), torch.randint(0, 1 << bits, (7, 2), dtype=torch.uint8)
    packed = torch.from_numpy(pack_codes(codes.numpy(), bits))
    indices, attributes = torch.tensor([[0, 6], [-1, 3]]), {"bits": bits, "group_size": 16}
    table = (codes.float() - 2 ** (bits - 1)) * scales[..., None]
    assert_close(embedding_nbits(scales, packed, indices, **attributes), table.flatten(1)[indices])
    table = (codes.float() - zeros[..., None].float()) * scales[..., None]
    actual = embedding_nbits(scales, packed, indices, zeros, **attributes)
    assert_close(actual, table.flatten(1)[indices])
    palette = torch.randn(1 << bits)
    table = palette[codes.long()] * scales[..., None]
    actual = embedding_nbits(scales, packed, indices, None, palette, **attributes)
    assert_close(actual, table.flatten(1)[indices])


def test_rows_have_the_dtype_of_the_scales() -> None:
    codes = torch.full((3, 2, 16), 0x77, dtype=torch.uint8)
    rows = embedding_nbits(torch.ones(3, 2, dtype=torch.float16), codes, torch.tensor(1))
    assert_close(rows, torch.full((64,), -1.0, dtype=torch.float16))


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(6, 2), (6, 2, 16), (3,)], {"bits": 5}, r"bits is 5, not one of \(8, 4, 3, 2\)"),
        ([(6, 2), (6, 2, 15), (3,)], {}, "15 bytes per group, 32 codes of 4 bits need 16"),
        ([(6, 3), (6, 2, 16), (3,)], {}, r"codes has shape \[6, 2, 16\]"),
        ([(6, 2), (6, 2, 16), (3,), (6, 2), (16,)], {}, "zero_points and palette exclude each"),
        ([(6, 2), (6, 2, 16), (3,), None, (15,)], {}, "palette has 15 values, 4-bit codes need"),
    ],
)
def test_a_wrong_call_is_an_error(shapes, attributes, message) -> None:
    dtypes = {1: torch.uint8, 2: torch.int64}
    case = Case("embedding_nbits", tuple(shapes), attributes, dtypes, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)
