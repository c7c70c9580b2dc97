"""Operations and bytes of operators, by hand."""

from __future__ import annotations

import pytest

from coreai_onnx.model.work import Operand, flops, moved_bytes


def f32(*shape: int) -> Operand:
    return Operand("float", shape)


def i64(*shape: int) -> Operand:
    return Operand("int64", shape)


Q, K = f32(1, 4, 3, 8), f32(1, 2, 6, 8)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "expected"),
    [
        ("MatMul", [f32(2, 3, 5), f32(5, 7)], [f32(2, 3, 7)], 2 * 2 * 3 * 5 * 7),
        ("MatMul", [f32(5), f32(5, 7)], [f32(7)], 2 * 5 * 7),
        ("FusedMatMul", [f32(5, 3), f32(5, 7)], [f32(3, 7)], 2 * 3 * 5 * 7),
        ("Gemm", [f32(3, 5), f32(5, 7), f32(7)], [f32(3, 7)], 2 * 3 * 5 * 7),
        ("MatMulNBits", [f32(4, 64), Operand("uint8", (8, 2, 16))], [f32(4, 8)], 2 * 4 * 8 * 64),
        ("linear_nbits.q4", [f32(4, 64)], [f32(4, 8)], 2 * 4 * 8 * 64),
        ("Conv", [f32(1, 4, 9, 9), f32(8, 2, 3, 3), f32(8)], [f32(1, 8, 7, 7)], 2 * 8 * 49 * 18),
        ("ConvTranspose", [f32(1, 4, 5, 5), f32(4, 2, 3, 3)], [f32(1, 2, 7, 7)], 2 * 100 * 18),
        # the scores: 2·S·D for each of H·L queries; the sum of the values the same
        ("Attention", [Q, K, K], [Q], 4 * 4 * 3 * 6 * 8),
        ("gather_mm", [f32(2, 1, 5), f32(9, 7, 5)], [f32(2, 1, 7)], 2 * 2 * 5 * 7),
        ("gated_delta_update", [f32(1, 3, 2, 4)], [f32(1, 3, 2, 6)], 7 * 3 * 2 * 4 * 6),
        ("Transpose", [f32(3, 5)], [f32(5, 3)], 0),
        ("ReduceSum", [f32(3, 5)], [f32(3)], 15),
        ("Sigmoid", [f32(3, 5)], [f32(3, 5)], 15),
        ("MatMul", [f32(), f32()], [f32()], 0),
        ("Conv", [f32(1)], [f32(1)], 0),
        ("RandomNormal", [], [f32(3)], 0),
    ],
)  # fmt: skip
def test_operations(op, inputs, outputs, expected) -> None:
    assert flops(op, inputs, outputs) == expected


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "expected"),
    [
        ("Add", [f32(3, 5), Operand("float16", (5,))], [f32(3, 5)], 60 + 10 + 60),
        ("Reshape", [f32(3, 5), Operand("int64", (1,))], [f32(15)], 0),
        ("Gather", [f32(1000, 5), Operand("int64", (2,))], [f32(2, 5)], 2 * 40 + 16),
        ("MatMulNBits", [f32(1, 8), Operand("uint4", (8, 8))], [f32(1, 8)], 32 + 32 + 32),
        # two of eight experts
        ("gather_mm", [f32(2, 1, 5), f32(8, 7, 5), i64(2, 1), i64(2)],
         [f32(2, 1, 7)], 40 + 8 * 35 * 4 // 4 + 16 + 16 + 56),
        ("StringNormalizer", [Operand("string", (3,))], [Operand("string", (3,))], 0),
    ],
)  # fmt: skip
def test_bytes(op, inputs, outputs, expected) -> None:
    assert moved_bytes(op, inputs, outputs) == expected
