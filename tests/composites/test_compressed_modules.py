"""Compressed weights of users' models, as modules and as parametrizations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import coreai_onnx
from coreai_onnx.composites import (
    PalettizeModule,
    ScaledPalettizeModule,
    SparseModule,
    WeightDequantizeModule,
)
from tests.support.tolerances import assert_close

U8 = torch.uint8
BYTES, TABLE = torch.zeros(4, 6, dtype=U8), torch.randn(2, 1, 4, 1)
SCALE, FLOATS = torch.rand(2, 1), torch.randn(4, 6)
POWERS = torch.tensor([[1.0], [0.25]]).to(torch.float8_e8m0fnu)


def parametrized(layer: nn.Module, weight: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", weight)
    return layer.eval()


def compressed_layers() -> dict[str, tuple[nn.Module, torch.Tensor, str, int]]:
    """Return layers, inputs, composites, and the bytes of their indices, codes or masks."""
    torch.manual_seed(0)  # of layers and scales
    generator = torch.Generator().manual_seed(0)

    def integers(low: int, high: int, *shape: int, dtype: torch.dtype = U8) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=dtype)

    mask = torch.rand(32, 64, generator=generator) < 0.25
    linear, x = lambda: nn.Linear(64, 32), torch.randn(3, 64)
    kernels = PalettizeModule(integers(0, 8, 16, 3, 3, 3), torch.randn(4, 1, 1, 1, 8, 1))
    pairs = PalettizeModule(integers(0, 64, 16, 64), torch.randn(2, 4, 64, 2), vector_axis=0)
    scaled = ScaledPalettizeModule(
        integers(0, 4, 32, 64), torch.tensor([-3, -1, 1, 3], dtype=torch.int8).view(1, 1, 4, 1),
        torch.rand(32, 4),
    )  # fmt: skip
    signed = WeightDequantizeModule(
        integers(-8, 8, 32, 64, dtype=torch.int8), torch.rand(32, 2),
        integers(-8, 8, 32, 2, dtype=torch.int8), input_dtype=torch.int4,
    )  # fmt: skip
    ranges = WeightDequantizeModule(
        integers(0, 8, 32, 64), torch.rand(32, 2), None, torch.randn(32, 2), torch.uint3
    )
    floats = torch.randn(32, 64).to(torch.float8_e4m3fn)
    return {
        "convolution": (parametrized(nn.Conv2d(3, 16, 3), kernels), torch.randn(1, 3, 8, 8),
                        "lut_to_dense", 162),
        "vectors": (parametrized(linear(), pairs), x, "lut_to_dense", 768),
        "scaled": (parametrized(linear(), scaled), x, "lut_to_dense", 512),
        "sparse": (parametrized(linear(), SparseModule(torch.randn(int(mask.sum())), mask)), x,
                   "sparse_to_dense", 256),
        "int4": (parametrized(linear(), signed), x, "blockwise_shift_scale", 1024),
        "minval": (parametrized(linear(), ranges), x, "blockwise_shift_scale", 768),
        "float8": (parametrized(linear(), WeightDequantizeModule(floats, torch.rand(32, 2))), x,
                   "lut_to_dense", 2048),
    }  # fmt: skip


LAYERS = compressed_layers()


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("target", ["onnxruntime", "kernels"])
def test_a_parametrized_weight_stays_compressed(kind: str, target: str, tmp_path: Path) -> None:
    layer, x, composite, size = LAYERS[kind]
    program = coreai_onnx.convert(layer, (x,)).optimize(target=target)
    assert_close(torch.from_numpy(program.run(x)[0]), layer(x).detach())
    program.save(tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert composite in {node.op_type.partition(".")[0] for node in graph.node}
    sizes = {
        int(np.prod(w.dims)) for w in graph.initializer if w.data_type == onnx.TensorProto.UINT8
    }
    assert size in sizes
    shape = list(layer.weight.shape)
    assert not any(list(w.dims) in (shape, shape[::-1]) for w in graph.initializer)


def test_indices_select_values_of_blocks() -> None:
    indices = torch.tensor([[0, 1, 1], [1, 0, 0]], dtype=U8)
    lut = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(2, 1, 2, 1)
    wanted = torch.tensor([[1.0, 2.0, 2.0], [4.0, 3.0, 3.0]])
    assert_close(PalettizeModule(indices, lut)(), wanted)
    scaled = ScaledPalettizeModule(indices, lut, torch.tensor([[1.0, 2.0, 4.0]]))
    assert_close(scaled(), wanted * torch.tensor([1.0, 2.0, 4.0]))


def test_a_mask_selects_elements() -> None:
    mask = torch.tensor([[0, 1, 0], [1, 0, 1]], dtype=U8)
    wanted = torch.tensor([[0.0, 5.0, 0.0], [6.0, 0.0, 7.0]])
    assert_close(SparseModule(torch.tensor([5.0, 6.0, 7.0]), mask)(), wanted)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_multiplied_by_the_scale(dtype: torch.dtype) -> None:
    data = FLOATS.to(dtype)
    wanted = data.float() * SCALE.repeat_interleave(2, 0)
    assert_close(WeightDequantizeModule(data, SCALE)(), wanted)


def test_float4_is_two_values_per_byte() -> None:
    data = torch.tensor([[0x10, 0x92], [0x7F, 0x34]], dtype=U8)
    values = torch.tensor([[0.0, 0.5, 1.0, -0.5], [-6.0, 6.0, 2.0, 1.5]])
    weight = WeightDequantizeModule(
        data, POWERS, input_dtype=torch.float4_e2m1fn_x2, output_dtype=torch.float32
    )
    assert_close(weight(), values * torch.tensor([[1.0], [0.25]]))


def test_the_result_has_the_output_dtype() -> None:
    data = torch.arange(24, dtype=U8).view(4, 6)
    weight = WeightDequantizeModule(data, SCALE.half(), output_dtype=torch.float32)
    assert_close(weight(), data * SCALE.half().float().repeat_interleave(2, 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PalettizeModule(BYTES.int(), TABLE),
            "indices must be uint8 with axes, got torch.int32",
        ),
        (lambda: PalettizeModule(BYTES, TABLE.int()), "lut must be floating, got torch.int32"),
        (lambda: PalettizeModule(BYTES[0, 0], TABLE), "got torch.uint8 of rank 0"),
        (lambda: PalettizeModule(BYTES, TABLE[0]), r"lut must have rank 4 \(indices \+ 2\), got 3"),
        (lambda: PalettizeModule(BYTES, TABLE[:, :, :3]), "must be a power of two, got 3"),
        (lambda: PalettizeModule(BYTES, TABLE.view(2, 1, 2, 2)), "2 elements need a vector_axis"),
        (lambda: PalettizeModule(BYTES, TABLE, 2), "axis 2 is out of range for a weight of rank 2"),
        (lambda: PalettizeModule(BYTES[:3], TABLE), "2 blocks along axis 0, which do not divide 3"),
        (lambda: PalettizeModule(BYTES + 4, TABLE), "index 4 is out of range of 4 entries"),
        (lambda: PalettizeModule(BYTES, torch.ones(1, 1, 512, 1)), "512 entries, uint8 selects"),
        (lambda: ScaledPalettizeModule(BYTES, TABLE, SCALE[:, 0]), "scale has 1 axes of blocks"),
        (lambda: ScaledPalettizeModule(BYTES, TABLE, SCALE.int()), "scale must be floating"),
        (lambda: SparseModule(FLOATS, BYTES), "values must have rank 1, got 2"),
        (lambda: SparseModule(BYTES[0], BYTES), "values must be floating, got torch.uint8"),
        (
            lambda: SparseModule(FLOATS[0], BYTES.int()),
            "mask must be uint8 or bool with axes, got torch.int32 of rank 2",
        ),
        (lambda: SparseModule(FLOATS[0], BYTES + 2), "mask has values other than 0 and 1"),
        (lambda: SparseModule(FLOATS[0], BYTES), "6 values for 0 ones in the mask"),
        (
            lambda: WeightDequantizeModule(BYTES, SCALE.int()),
            "scale must be floating, got torch.int32",
        ),
        (lambda: WeightDequantizeModule(BYTES, SCALE, BYTES[:2, :1], SCALE, U8), "exclude"),
        (lambda: WeightDequantizeModule(BYTES, SCALE, None, SCALE), "minval needs an input_dtype"),
        (lambda: WeightDequantizeModule(BYTES, POWERS), "needs an output_dtype"),
        (lambda: WeightDequantizeModule(BYTES, SCALE[0]), "scale has 1 axes of blocks"),
        (lambda: WeightDequantizeModule(BYTES[:3], SCALE), "2 blocks along axis 0"),
        (
            lambda: WeightDequantizeModule(BYTES, SCALE, SCALE),
            "zero_point must be torch.uint8, as the data",
        ),
        (lambda: WeightDequantizeModule(BYTES, SCALE, BYTES), "zero_point and scale differ"),
        (
            lambda: WeightDequantizeModule(BYTES.int(), SCALE),
            "data must be int8 or uint8 with axes, got torch.int32",
        ),
        (lambda: WeightDequantizeModule(BYTES, SCALE, None, None, torch.int16), "not an integer"),
        (lambda: WeightDequantizeModule(BYTES + 4, SCALE, None, None, torch.uint2), "out of range"),
        (
            lambda: WeightDequantizeModule(FLOATS.to(torch.float8_e5m2), SCALE, SCALE),
            "neither zero_point nor minval",
        ),
        (lambda: WeightDequantizeModule(FLOATS, SCALE), "is not float8 or float4"),
    ],
)
def test_a_wrong_argument_is_an_error(make, message: str) -> None:
    with pytest.raises(ValueError, match=f"Module: .*{message}"):
        make()
