"""Products with few-bit weights against the weight written out, and against onnxruntime's op."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from coreai_onnx.composites.few_bits import linear_nbits
from coreai_onnx.lower.build.composite_checks import CompositeCallError
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
def test_keeps_the_dtype_and_computes_in_a_wide_one(dtype: torch.dtype) -> None:
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
        ([(3, 64), (6, 2, 16), (6, 2)], {"bits": 5}, r"bits is 5, not one of \(8, 4, 3, 2\)"),
        ([(3, 64), (6, 2, 16), (6, 2)], {"activation_bits": 4}, r"activation_bits is 4"),
        ([(3, 62), (6, 2, 12), (6, 2)], {"bits": 3, "group_size": 31}, "group_size is 31: 3-bit"),
        ([(3, 64), (6, 2, 16), (6, 2)], {"group_size": 0}, "group_size is 0: 4-bit"),
        ([(3, 64), (6, 2, 15), (6, 2)], {}, "15 bytes per group, 32 codes of 4 bits need 16"),
        ([(3, 63), (6, 2, 16), (6, 2)], {}, "input has 63 columns, codes have 2 groups of 32"),
        ([(3, 64), (6, 2, 16), (6, 3)], {}, r"scales has shape \[6, 3\]"),
        ([(3, 64), (6, 2, 16), (6, 2), (6, 2), (16,)], {}, "zero_points and palette exclude each"),
        ([(3, 64), (6, 2, 16), (6, 2), None, (15,)], {}, "palette has 15 values, 4-bit codes need"),
        ([(), (6, 2, 16), (6, 2)], {}, "input has rank 0"),
        ([(3, 64), (2, 16), (2,)], {}, "codes has rank 2, at least 3 are needed"),
    ],
)
def test_a_wrong_call_is_an_error(shapes, attributes, message) -> None:
    case = Case("linear_nbits", tuple(shapes), attributes, {1: torch.uint8}, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)


def test_codes_of_another_dtype_are_an_error() -> None:
    case = Case("linear_nbits", ((3, 64), (6, 2, 16), (6, 2)), {}, {1: torch.int8}, "wrong")
    with pytest.raises(CompositeCallError, match="codes is int8, not uint8"):
        case.model(torch.float32, dynamic=False)
