"""Torch ops that return decompressed weights: values, dtypes, and wrong arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from coreai_onnx.composites import WeightDequantizeModule
from coreai_onnx.composites.compressed_ops import POWERS, computed_dtype
from tests.support.tolerances import assert_close

Q = torch.ops.coreai
U8 = torch.uint8
BYTES, TABLE = torch.zeros(4, 6, dtype=U8), torch.randn(2, 1, 4, 1)
SCALE, FLOATS = torch.rand(2, 1), torch.randn(4, 6)
TWO = torch.tensor([[1.0], [0.25]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e5m2])
def test_indices_select_values_of_blocks(dtype: torch.dtype) -> None:
    indices = torch.tensor([[0, 1, 1], [1, 0, 0]], dtype=U8)
    lut = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(dtype).view(2, 1, 2, 1)
    found = Q.lut_to_dense(indices, lut)
    assert (found.dtype, found.tolist()) == (dtype, [[1, 2, 2], [4, 3, 3]])


def test_elements_of_vectors_are_neighbors_along_the_axis() -> None:
    lut = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 2, 2)
    indices = torch.tensor([[0, 1]], dtype=U8)
    assert Q.lut_to_dense(indices, lut, 0).tolist() == [[1, 3], [2, 4]]
    assert Q.lut_to_dense(indices, lut, -1).tolist() == [[1, 2, 3, 4]]


def test_integers_are_shifted_and_scaled_in_blocks() -> None:
    data = torch.tensor([[-8, 7], [0, 3]], dtype=torch.int8)
    zero = torch.tensor([[1], [2]], dtype=torch.int8)
    scale = Q.constexpr_blockwise_shift_scale
    assert scale(data, TWO).tolist() == [[-8, 7], [0, 0.75]]
    assert scale(data, TWO, zero).tolist() == [[-9, 6], [-0.5, 0.25]]
    least = scale(data, TWO, None, TWO, torch.int4)
    assert least.tolist() == [[1, 16], [2.25, 3]]
    half = scale(data, TWO.half(), None, None, torch.int4, torch.float32)
    assert (half.dtype, half.tolist()) == (torch.float32, [[-8, 7], [0, 0.75]])


def test_floats_are_scaled() -> None:
    scale = Q.constexpr_blockwise_shift_scale
    pairs = torch.tensor([[0x10, 0x92], [0x7F, 0x34]], dtype=U8)
    wanted = torch.tensor([[0.0, 0.5, 1.0, -0.5], [-1.5, 1.5, 0.5, 0.375]])
    powers = TWO.to(POWERS)
    assert_close(scale(pairs, powers, None, None, None, torch.float32), wanted)
    assert_close(scale(pairs, TWO, None, None, torch.float4_e2m1fn_x2), wanted)
    assert_close(WeightDequantizeModule(pairs, powers, output_dtype=torch.float32)(), wanted)
    narrow = FLOATS.to(torch.float8_e4m3fn)
    assert_close(scale(narrow, SCALE), narrow.float() * SCALE.repeat_interleave(2, 0))


def test_a_mask_selects_elements() -> None:
    mask = torch.tensor([[0, 1, 0], [1, 0, 1]], dtype=U8)
    for given in (mask, mask.bool()):
        found = Q.sparse_to_dense(torch.tensor([5, 6, 7], dtype=torch.int8), given)
        assert (found.dtype, found.tolist()) == (torch.int8, [[0, 5, 0], [6, 0, 7]])


def test_dtypes_of_computation() -> None:
    assert computed_dtype(POWERS, torch.float16) == torch.float32
    assert computed_dtype(torch.float16, torch.float16) == torch.float16
    assert computed_dtype(torch.float16, torch.bfloat16) == torch.float32


SHAPES = {
    "indices": (
        lambda: Q.lut_to_dense(BYTES.int(), TABLE),
        "indices must be uint8 with axes, got torch.int32",
    ),
    "rank": (
        lambda: Q.lut_to_dense(BYTES, TABLE[0]),
        r"lut must have rank 4 \(indices \+ 2\), got 3",
    ),
    "entries": (lambda: Q.lut_to_dense(BYTES, TABLE[:, :, :3]), "must be a power of two, got 3"),
    "many": (lambda: Q.lut_to_dense(BYTES, torch.ones(1, 1, 512, 1)), "512 entries, uint8"),
    "axis": (lambda: Q.lut_to_dense(BYTES, TABLE.view(2, 1, 2, 2)), "2 elements need an axis"),
    "far": (lambda: Q.lut_to_dense(BYTES, TABLE, 2), "axis 2 is out of range"),
    "blocks": (lambda: Q.lut_to_dense(BYTES[:3], TABLE), "2 blocks along axis 0, which do not"),
    "scale": (lambda: scaled(BYTES, SCALE.int()), "scale must be floating, got torch.int32"),
    "powers": (lambda: scaled(BYTES, TWO.to(POWERS)), "needs an output_dtype"),
    "both": (lambda: scaled(BYTES, SCALE, BYTES[:2, :1], SCALE, U8), "exclude each other"),
    "minval": (lambda: scaled(BYTES, SCALE, None, SCALE), "minval needs an input_dtype"),
    "floats": (lambda: scaled(FLOATS, SCALE, SCALE), "torch.float32 has neither zero_point nor"),
    "words": (
        lambda: scaled(BYTES.int(), SCALE),
        "input must be int8, uint8 or floating, got torch.int32",
    ),
    "zeros": (
        lambda: scaled(BYTES, SCALE, SCALE),
        "zero_point must be torch.uint8, as the input, got torch.float32",
    ),
    "differ": (lambda: scaled(BYTES, SCALE, BYTES), "zero_point or minval and scale differ"),
    "divide": (lambda: scaled(BYTES[:3], SCALE), "2 blocks along axis 0"),
    "values": (lambda: Q.sparse_to_dense(FLOATS, BYTES), "values must have rank 1, got 2"),
    "mask": (
        lambda: Q.sparse_to_dense(FLOATS[0], BYTES.int()),
        "mask must be uint8 or bool with axes, got torch.int32 of rank 2",
    ),
}
VALUES = {
    "index": (lambda: Q.lut_to_dense(BYTES + 4, TABLE), "index 4 is out of range of 4 entries"),
    "range": (lambda: scaled(BYTES + 4, SCALE, None, None, torch.uint2), "out of range of torch"),
    "ones": (lambda: Q.sparse_to_dense(FLOATS[0], BYTES + 2), "values other than 0 and 1"),
    "count": (lambda: Q.sparse_to_dense(FLOATS[0], BYTES), "6 values for 0 ones in the mask"),
}


def scaled(*arguments: object) -> torch.Tensor:
    return Q.constexpr_blockwise_shift_scale(*arguments)


@pytest.mark.parametrize(("call", "message"), [*SHAPES.values(), *VALUES.values()])
def test_a_wrong_argument_is_an_error(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("call", "message"), SHAPES.values(), ids=SHAPES)
def test_a_wrong_shape_is_an_error_at_export(call: Callable[[], object], message: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ValueError, match=message):
        call()
