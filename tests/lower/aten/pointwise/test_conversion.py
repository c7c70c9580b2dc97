"""Conversions between dtypes against torch."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.errors import LoweringError
from tests.lower.checking import check, lower_module, op_types

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_every_pair(source, target):
    x = torch.tensor([0.0, 1.0, 2.7, 100.0, 0.3])
    if source.is_signed and (target.is_signed or target == torch.uint8):
        x = torch.cat([x, -x])
    check(lambda x: x.to(target), x.to(source))


@pytest.mark.parametrize("source", [torch.int64, torch.int32, torch.int16], ids=str)
def test_integers_wrap_around(source):
    x = torch.tensor([-1, 128, 255, 256, 300, -129]).to(source)
    check(lambda x: (x.to(torch.int8), x.to(torch.uint8)), x)


def test_integers_beyond_float():
    check(lambda x: (x.double(), x.float(), x.int()), torch.tensor([2**53 + 1, 2**31, -(2**40)]))


def test_not_finite():
    x = torch.tensor([float("nan"), float("inf"), 1e6, -1e6, 65520.0, 1e-8])
    check(lambda x: (x.half(), x.bfloat16(), x.bool(), x.double()), x)


def test_ways_to_say_it():
    x, y = torch.tensor([1.5, -2.0]), torch.tensor([1, 2])
    check(lambda x, y: (x.to(y), x.type_as(y), y.to(x.device, torch.float16), x.to("cpu")), x, y)
    check(lambda x: x.to(dtype=torch.float64, device="cpu", copy=True), x)
    check(lambda x: torch.ops.aten._to_copy.default(x, dtype=torch.int32), x)
    check(lambda x, y: (x.to(y), x.int(), x.clone(), y.float()), x, y, decompose=True)
    check(lambda x: torch.ops.prims.convert_element_type.default(x, torch.int64), x)


def test_copies_make_no_nodes():
    model = check(
        lambda x: (x.clone().contiguous().detach().to(torch.float32) + 1, +x), torch.randn(3)
    )
    assert op_types(model) in (["Add"], ["Add", "Identity"], ["Identity", "Add"])


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool], ids=str)
def test_view_of_the_same_width(dtype):
    same = {torch.int32: torch.int32, torch.uint8: torch.int8, torch.bool: torch.uint8}[dtype]
    x = torch.tensor([0, 1, 1]) if dtype == torch.bool else torch.tensor([0, 1, 200])
    check(lambda x: x.view(same), x.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_the_bits_of_a_buffer_in_float8(dtype):
    class Bits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.randn(4).to(dtype))

        def forward(self, x):
            return x + self.codes.view(torch.uint8)

    check(Bits(), torch.randn(4))
    with pytest.raises(LoweringError, match="no op for it"):
        lower_module(lambda x: x.to(dtype).view(torch.uint8), (torch.randn(4),))


def test_view_of_another_width_is_an_error():
    with pytest.raises(LoweringError, match="no op for it"):
        lower_module(lambda x: x.view(torch.int16), (torch.randn(4),))


def test_dynamic():
    batch = torch.export.Dim("batch")
    check(
        lambda x: x.to(torch.int64),
        torch.randn(3, 4) * 5,
        dynamic_shapes=({0: batch},),
        others=[(torch.randn(5, 4),)],
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex_numbers_of_half_width():
    check(lambda x: x.to(torch.complex32), torch.randn(3))
