"""Weights of few bits as blocks of GGUF: the bytes that were read, and those of the quantizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

from coreai_onnx.composites.few_bit_weights import dequantized
from coreai_onnx.huggingface.checkpoints.gguf.blocks import PACKED, packed_matrix
from coreai_onnx.huggingface.checkpoints.gguf.packing import fit
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix
from coreai_onnx.model.packed_codes import pack_codes
from tests.huggingface.checkpoints.gguf.random_blocks import parts_of, random_blocks


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_bytes_are_those_that_were_read(kind: Type) -> None:
    data, _ = random_blocks(kind, 5, 512)
    fitting = fit(matrix := packed_matrix(data, kind, 5))
    assert (fitting is None) == (kind == Type.Q8_K)
    if fitting is not None:
        assert fitting[0] == kind
        if kind == Type.NVFP4:  # the sign of a scale means nothing
            assert np.array_equal(dequantize(fitting[1](matrix), kind), dequantize(data, kind))
        else:
            assert np.array_equal(fitting[1](matrix), data)


def quantized(
    bits: int, group: int, zeros: torch.Tensor | None, scale: float = 0.125
) -> PackedMatrix:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (4, 256 // group, group), np.uint8)
    codes.reshape(-1)[:2] = 0, (1 << bits) - 1
    scales = torch.full((4, 256 // group), scale)
    points = None if zeros is None else zeros.expand(4, 256 // group).contiguous()
    return PackedMatrix(torch.from_numpy(pack_codes(codes, bits)), scales, bits, points)


def point(value: float, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


@pytest.mark.parametrize(
    ("matrix", "kind"),
    [
        (quantized(4, 32, None), Type.Q4_0),
        (quantized(4, 128, None), Type.Q4_0),
        (quantized(4, 32, point(8)), Type.Q4_1),
        (quantized(4, 64, point(3)), Type.Q4_1),
        (quantized(4, 32, point(7), scale=float(np.float16(0.1003))), Type.Q5_0),
        (quantized(4, 32, point(2.5, torch.float32)), Type.Q4_1),
        (quantized(3, 32, None), Type.Q4_0),
        (quantized(2, 64, None), Type.Q4_0),
        (quantized(8, 32, None), Type.Q8_0),
        (quantized(8, 256, point(128)), Type.Q8_0),
        (quantized(8, 32, point(127)), None),
        (quantized(4, 16, None), None),
        (quantized(4, 32, None, scale=0.1), None),
        (quantized(4, 32, point(2.4, torch.float32)), None),
    ],
)
def test_weights_of_the_quantizer_keep_their_values(matrix: PackedMatrix, kind: Type) -> None:
    fitting = fit(matrix)
    if kind is None:
        assert fitting is None
        return
    assert fitting is not None
    assert fitting[0] == kind
    expected = dequantized(parts_of(matrix), matrix.bits, 0, torch.float32).reshape(4, 256)
    assert np.array_equal(dequantize(fitting[1](matrix), kind), expected.numpy())


def test_minimums_are_rounded_on_request() -> None:
    matrix = quantized(4, 32, point(7), scale=float(np.float16(0.1003)))
    kind, pack = fit(matrix, round_minimums=True) or pytest.fail("does not fit")
    assert kind == Type.Q4_1
    expected = dequantized(parts_of(matrix), 4, 0, torch.float32).reshape(4, 256)
    assert np.abs(dequantize(pack(matrix), kind) - expected.numpy()).max() < 0.7 * 2**-11


def test_values_of_fp4_are_those_of_mxfp4() -> None:
    palette = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    plain = quantized(4, 32, None)
    matrix = PackedMatrix(plain.codes, plain.scales, 4, palette=palette)
    kind, pack = fit(matrix) or pytest.fail("does not fit")
    assert kind == Type.MXFP4
    expected = dequantized(parts_of(matrix), 4, 0, torch.float32).reshape(4, 256)
    assert np.array_equal(dequantize(pack(matrix), kind), expected.numpy())
