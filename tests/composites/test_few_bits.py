"""Products and lookups with few-bit weights, against their formulas."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from coreai_onnx.composites.few_bits import embedding_nbits, gather_mm_nbits, linear_nbits
from coreai_onnx.composites.products import gather_mm
from coreai_onnx.lower.nodes.composite_checks import CompositeCallError
from coreai_onnx.model.packed_codes import pack_codes
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

BITS = [8, 4, 3, 2]


def codes_of(bits: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 1 << bits, shape, dtype=torch.uint8)


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.from_numpy(pack_codes(codes.numpy(), bits))


@pytest.mark.parametrize("bits", BITS)
def test_a_weight_is_code_minus_zero_point_times_scale(bits: int) -> None:
    codes, scales, x = codes_of(bits, 6, 2, 16), torch.rand(6, 2), torch.randn(3, 32)
    zeros = codes_of(bits, 6, 2)
    given = packed(codes, bits)
    middle = ((codes.float() - 2 ** (bits - 1)) * scales[..., None]).reshape(6, 32)
    attributes = {"bits": bits, "group_size": 16}
    assert_close(linear_nbits(x, given, scales, **attributes), x @ middle.T)
    shifted = ((codes.float() - zeros[..., None].float()) * scales[..., None]).reshape(6, 32)
    assert_close(linear_nbits(x, given, scales, zeros, **attributes), x @ shifted.T)
    palette, bias = torch.randn(1 << bits), torch.randn(6)
    looked_up = (palette[codes.long()] * scales[..., None]).reshape(6, 32)
    actual = linear_nbits(x, given, scales, None, palette, bias, **attributes)
    assert_close(actual, x @ looked_up.T + bias)


@pytest.mark.parametrize("bits", BITS)
def test_rounded_activations_are_integers_times_a_scale(bits: int) -> None:
    codes, scales, x = codes_of(bits, 6, 2, 16), torch.rand(6, 2), torch.randn(3, 32)
    x[1, 16:] = 0
    groups = x.reshape(3, 2, 16)
    largest = groups.abs().amax(-1)
    steps = torch.round(groups * (127 / largest)[..., None]).nan_to_num().to(torch.int64)
    sums = torch.einsum("rgk,ngk->rng", steps, codes.to(torch.int64) - 2 ** (bits - 1))
    expected = (sums * (largest / 127)[:, None] * scales).sum(-1)
    attributes = {"bits": bits, "group_size": 16, "activation_bits": 8}
    assert_close(linear_nbits(x, packed(codes, bits), scales, **attributes), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_keeps_the_dtype_and_computes_in_a_wide_one_of_linear_nbits(dtype: torch.dtype) -> None:
    codes, scales = packed(codes_of(4, 6, 2, 32), 4), torch.rand(6, 2).bfloat16()
    x = torch.randn(2, 5, 64).to(dtype)
    actual = linear_nbits(x, codes, scales)
    wide = linear_nbits(x.double(), codes, scales.double())
    assert_close(actual, wide.to(dtype))


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_codes_have_the_layout_of_onnxruntime(bits: int) -> None:
    codes, scales, x = codes_of(bits, 6, 2, 32), torch.rand(6, 2), torch.randn(3, 64)
    weight, zeros = packed(codes, bits), codes_of(bits, 6, 2)
    row = torch.nn.functional.pad(zeros, (0, -2 % (8 // bits)))
    tensors = {"B": weight, "scales": scales, "zeros": packed(row, bits)}
    node = onnx.helper.make_node(
        "MatMulNBits",
        ["x", *tensors],
        ["y"],
        domain="com.microsoft",
        K=64,
        N=6,
        bits=bits,
        block_size=32,
    )
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 6])],
        [onnx.numpy_helper.from_array(t.numpy(), name) for name, t in tensors.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (actual,) = session.run(None, {"x": x.numpy()})
    expected = linear_nbits(x, weight, scales, zeros, bits=bits)
    assert isinstance(actual, np.ndarray)
    assert_close(actual, expected)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        (
            [(3, 64), (6, 2, 16), (6, 2)],
            {"bits": 7},
            r"bits must be one of \(8, 6, 5, 4, 3, 2\), got 7",
        ),
        (
            [(3, 64), (6, 2, 16), (6, 2)],
            {"activation_bits": 4},
            "activation_bits must be one of",
        ),
        ([(3, 62), (6, 2, 12), (6, 2)], {"bits": 3, "group_size": 31}, "group_size is 31: 3-bit"),
        ([(3, 64), (6, 2, 16), (6, 2)], {"group_size": 0}, "group_size is 0: 4-bit"),
        ([(3, 64), (6, 2, 15), (6, 2)], {}, "15 bytes per group, 32 codes of 4 bits need 16"),
        ([(3, 63), (6, 2, 16), (6, 2)], {}, "input has 63 columns, codes have 2 groups of 32"),
        ([(3, 64), (6, 2, 16), (6, 3)], {}, r"scales has shape \[6, 3\], codes have 2 groups"),
        ([(3, 64), (6, 2, 16), (6, 2), (6, 2), (16,)], {}, "zero_points and palette exclude each"),
        ([(3, 64), (6, 2, 16), (6, 2), None, (15,)], {}, "palette has 15 values, 4-bit codes need"),
        ([(), (6, 2, 16), (6, 2)], {}, "input must have rank 1 or higher, got 0"),
        ([(3, 64), (2, 16), (2,)], {}, "codes must have rank 3 or higher, got 2"),
    ],
)
def test_a_wrong_call_is_an_error_of_linear_nbits(shapes, attributes, message) -> None:
    case = Case("linear_nbits", tuple(shapes), attributes, {1: torch.uint8}, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)


def test_codes_of_scales_of_a_size_that_no_file_has_are_an_error() -> None:
    shapes = ((3, 64), (6, 2, 16), (6, 1), None, (16,), None, None, (6, 1, 2))
    dtypes = {1: torch.uint8, 7: torch.uint8}
    case = Case("linear_nbits", shapes, {"scale_bits": 8}, dtypes, "wrong")
    with pytest.raises(CompositeCallError, match=r"scale_bits must be one of \(6,\) with palette"):
        case.model(torch.float32, dynamic=False)


@pytest.mark.parametrize(
    ("table", "layout", "palette", "attributes", "message"),
    [
        ((130, 4), None, (16,), {}, "table and layout need each other and a palette"),
        (None, (136, 4), (16,), {}, "table and layout need each other and a palette"),
        ((130, 4), (136, 4), None, {}, "table and layout need each other and a palette"),
        ((130, 3), (136, 4), (16,), {}, "group_size is 32, rows of table have 3 codes: must"),
        ((130, 0), (136, 4), (16,), {}, "rows of table have 0 codes: must divide 256"),
        ((130, 4), (136, 4), (16,), {"group_size": 24}, "group_size is 24, rows of table have 4"),
        ((130, 4), (136, 3), (16,), {}, "layout has rows of 3, must be 1 and 3 for each field"),
        ((130, 4), (136, 1), (16,), {}, "layout has rows of 1, must be 1 and 3 for each field"),
        ((130, 4), (137, 4), (16,), {}, "layout has 137 numbers, groups of 32 in rows of 4 need"),
        ((130,), (136, 4), (16,), {}, "table must have rank 2 or higher, got 1"),
        ((130, 4), (136,), (16,), {}, "layout must have rank 2 or higher, got 1"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_an_error(table, layout, palette, attributes, message) -> None:
    parts = (None, palette, None, None, None, table, layout)
    dtypes = {1: torch.uint8, 8: torch.uint8, 9: torch.int32}
    shapes = ((3, 512), (6, 2, 11), (6, 2), *parts)
    case = Case("linear_nbits", shapes, attributes, dtypes, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)


@pytest.mark.parametrize(
    ("columns", "scales", "message"),
    [
        (500, (6, 2), "input has 500 columns, codes have 2 blocks of 256"),
        (512, (6, 16), r"scales has shape \[6, 16\], codes have 2 groups"),
    ],
)
def test_blocks_of_another_number_are_an_error(columns, scales, message) -> None:
    parts = (None, (16,), None, None, None, (130, 4), (136, 4))
    dtypes = {1: torch.uint8, 8: torch.uint8, 9: torch.int32}
    case = Case("linear_nbits", ((3, columns), (6, 2, 11), scales, *parts), {}, dtypes, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)


def test_codes_of_another_dtype_are_an_error() -> None:
    case = Case("linear_nbits", ((3, 64), (6, 2, 16), (6, 2)), {}, {1: torch.int8}, "wrong")
    with pytest.raises(CompositeCallError, match="codes is int8, not uint8"):
        case.model(torch.float32, dynamic=False)


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
def test_keeps_the_dtype_and_computes_in_a_wide_one_of_gather_mm_nbits(dtype: torch.dtype) -> None:
    codes = torch.randint(0, 256, (3, 6, 2, 16), dtype=torch.uint8)
    scales, x = torch.rand(3, 6, 2).bfloat16(), torch.randn(4, 1, 64).to(dtype)
    chosen = torch.tensor([2, 0, 2, 1])
    wide = gather_mm_nbits(x.double(), codes, scales.double(), chosen)
    assert_close(gather_mm_nbits(x, codes, scales, chosen), wide.to(dtype))


X, CODES, GROUPS, CHOSEN = (3, 1, 64), (5, 6, 2, 16), (5, 6, 2), (3,)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        (
            [X, CODES, GROUPS, CHOSEN],
            {"bits": 7},
            r"bits must be one of \(8, 6, 5, 4, 3, 2\), got 7",
        ),
        (
            [X, CODES, GROUPS, CHOSEN],
            {"activation_bits": 4},
            "activation_bits must be one of",
        ),
        ([X, CODES, GROUPS, CHOSEN], {"group_size": 0}, "group_size is 0: 4-bit"),
        ([X, (5, 6, 2, 15), GROUPS, CHOSEN], {}, "15 bytes per group, 32 codes of 4 bits need 16"),
        ([(3, 1, 63), CODES, GROUPS, CHOSEN], {}, "lhs has 63 columns, codes have 2 groups of 32"),
        ([X, CODES, (4, 6, 2), CHOSEN], {}, r"scales has shape \[4, 6, 2\]"),
        ([X, CODES[1:], GROUPS[1:], CHOSEN], {}, "codes must have rank 4 or higher, got 3"),
        ([X, CODES, GROUPS, CHOSEN, GROUPS, (16,)], {}, "zero_points and palette exclude each"),
        ([X, CODES, GROUPS, CHOSEN, None, (15,)], {}, "palette has 15 values, 4-bit codes need"),
        ([(64,), CODES, GROUPS, CHOSEN], {}, "lhs must have rank 2 or higher, got 1"),
    ],
)
def test_a_wrong_call_is_an_error_of_gather_mm_nbits(shapes, attributes, message) -> None:
    dtypes = {1: torch.uint8, 3: torch.int64}
    case = Case("gather_mm_nbits", tuple(shapes), attributes, dtypes, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)


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


def test_rows_of_narrow_scales_are_not_rounded() -> None:
    codes = torch.arange(96, dtype=torch.uint8).view(3, 2, 16)
    scales = torch.rand(3, 2).half()
    table = (codes.float() - 128) * scales.float().unsqueeze(-1)
    like = torch.zeros((), dtype=torch.float32)
    attributes = {"bits": 8, "group_size": 16}
    rows = embedding_nbits(scales, codes, torch.tensor([2, 0]), like=like, **attributes)
    assert torch.equal(rows, table.flatten(1)[[2, 0]])
    assert not torch.equal(rows, rows.half().float())


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        (
            [(6, 2), (6, 2, 16), (3,)],
            {"bits": 7},
            r"bits must be one of \(8, 6, 5, 4, 3, 2\), got 7",
        ),
        ([(6, 2), (6, 2, 15), (3,)], {}, "15 bytes per group, 32 codes of 4 bits need 16"),
        ([(6, 3), (6, 2, 16), (3,)], {}, r"scales has shape \[6, 3\], codes have 2 groups"),
        ([(6, 2), (6, 2, 16), (3,), (6, 2), (16,)], {}, "zero_points and palette exclude each"),
        ([(6, 2), (6, 2, 16), (3,), None, (15,)], {}, "palette has 15 values, 4-bit codes need"),
    ],
)
def test_a_wrong_call_is_an_error_of_embedding_nbits(shapes, attributes, message) -> None:
    dtypes = {1: torch.uint8, 2: torch.int64}
    case = Case("embedding_nbits", tuple(shapes), attributes, dtypes, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)
