"""The torch ops of this package: composites, and decompressed weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx import convert
from coreai_onnx.composites import torch_ops
from coreai_onnx.composites.compressed_ops import POWERS
from coreai_onnx.errors import LoweringError
from coreai_onnx.program import OnnxProgram
from tests.lower.checking import Wrapped
from tests.support.tolerances import assert_close


def test_gather_mm_keeps_its_inputs_and_attributes() -> None:
    def product(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch_ops.gather_mm(x, w, i, i, 1, True)

    given = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 6, 8), torch.tensor([3, 0, 0])
    program = convert(Wrapped(product), given)
    (node,) = program.model.graph
    assert (node.domain, node.op_type, len(node.inputs)) == ("ai.coreai", "gather_mm", 4)
    attributes = {name: a.as_int() for name, a in node.attributes.items()}
    assert attributes == {"num_batch_axes": 1, "transpose_rhs": 1, "version": 1}
    assert_close(program.run(*given, kernels=False)[0], product(*given))


def test_gather_mm_nbits_keeps_its_inputs_and_attributes() -> None:
    def product(x: torch.Tensor, codes: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        scales, palette = codes[..., 0].float() / 256, torch.linspace(-1, 1, 4)
        sizes = {"bits": 2, "group_size": 16, "activation_bits": 8}
        return torch_ops.gather_mm_nbits(x, codes, scales, i, None, palette, **sizes)

    tokens = Dim("tokens")
    codes = torch.randint(0, 256, (3, 5, 2, 4), dtype=torch.uint8)

    def given(count: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(count, 1, 32), codes, torch.randint(0, 3, (count,))

    program = convert(
        Wrapped(product), given(4), dynamic_shapes=(({0: tokens}, None, {0: tokens}),)
    )
    (node,) = (n for n in program.model.graph if n.domain == "ai.coreai")
    assert (node.op_type, len(node.inputs), node.inputs[4]) == ("gather_mm_nbits", 6, None)
    attributes = {name: a.as_int() for name, a in node.attributes.items()}
    sizes = {"bits": 2, "group_size": 16, "activation_bits": 8, "scale_bits": 0}
    assert attributes == {**sizes, "version": 1}
    again = given(9)
    assert_close(program.run(*again, kernels=False)[0], product(*again))


def test_gated_delta_update_gives_both_outputs_or_the_state_alone() -> None:
    def last(*given: torch.Tensor) -> torch.Tensor:
        return torch_ops.gated_delta_update(*given)[1]

    def both(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch_ops.gated_delta_update(*given, None, False)

    def tensors(length: int) -> tuple[torch.Tensor, ...]:
        key, gate = torch.randn(1, 2, length, 4), torch.rand(1, 2, length)
        return key, torch.randn_like(key), torch.randn_like(key), -gate, torch.rand_like(gate)

    dims = (({2: Dim("length")},) * 5,)
    for function in (last, both):
        program = convert(Wrapped(function), tensors(5), dynamic_shapes=dims)
        assert program.composites() == {"ai.coreai::gated_delta_update": 1}
        given = tensors(7)
        expected = function(*given)
        actual = list(program.run(*given, kernels=False))
        assert_close(actual, [expected] if isinstance(expected, torch.Tensor) else expected)


Q = torch.ops.coreai
I8, U8 = torch.int8, torch.uint8
MAKE = torch.Generator().manual_seed(0)


def integers(low: int, high: int, *shape: int, dtype: torch.dtype = U8) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=MAKE, dtype=dtype)


def randoms(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=MAKE)


Decompress = Callable[..., torch.Tensor]


class Linear(torch.nn.Module):
    """A module as users write it: compressed tensors are buffers, the weight is computed."""

    def __init__(self, decompress: Decompress, parts: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.decompress, self.count = decompress, len(parts)
        for i, part in enumerate(parts):
            self.register_buffer(f"part{i}", part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.decompress(*(getattr(self, f"part{i}") for i in range(self.count)))
        return torch.nn.functional.linear(x, weight.to(x.dtype))


def scale_table(indices: torch.Tensor, lut: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return Q.constexpr_blockwise_shift_scale(Q.lut_to_dense(indices, lut, 0), scale)


def shift_table(
    indices: torch.Tensor, lut: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
) -> torch.Tensor:
    return Q.constexpr_blockwise_shift_scale(Q.lut_to_dense(indices, lut, 0), scale, zero)


def with_minimum(data: torch.Tensor, scale: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    return Q.constexpr_blockwise_shift_scale(data, scale, None, least, torch.int4)


def to_half(data: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return Q.constexpr_blockwise_shift_scale(data, scale, zero, None, None, torch.float16)


def to_float32(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return Q.constexpr_blockwise_shift_scale(data, scale, output_dtype=torch.float32)


def sparse_integers(nonzero: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return Q.constexpr_blockwise_shift_scale(Q.sparse_to_dense(nonzero, mask), scale)


MASK = (torch.rand(32, 64, generator=MAKE) < 0.25).to(U8)
COUNT = int(MASK.sum())
SCALES = torch.rand(32, 2, generator=MAKE) / 8
FP8 = torch.float8_e4m3fn
CASES: dict[str, tuple[Decompress, tuple[torch.Tensor, ...], list[str], int]] = {
    "palette": (Q.lut_to_dense, (integers(0, 8, 32, 64), randoms(4, 1, 8, 1)),
                ["lut_to_dense"], 768),
    "vectors": (lambda i, t: Q.lut_to_dense(i, t, 0),
                (integers(0, 16, 16, 64), randoms(2, 4, 16, 2)), ["lut_to_dense"], 512),
    "table of int8": (scale_table, (integers(0, 4, 32, 64), integers(-9, 9, 1, 1, 4, 1, dtype=I8),
                                    SCALES), ["lut_to_dense"], 512),
    "table of float8": (scale_table, (integers(0, 16, 32, 64), randoms(1, 1, 16, 1).to(FP8),
                                      SCALES), ["lut_to_dense"], 1024),
    "shifted table": (shift_table, (integers(0, 4, 32, 64), integers(-9, 9, 1, 1, 4, 1, dtype=I8),
                                    SCALES, integers(-2, 2, 32, 2, dtype=I8)),
                      ["lut_to_dense", "blockwise_shift_scale"], 512),
    "int8": (Q.constexpr_blockwise_shift_scale,
             (integers(-128, 128, 32, 64, dtype=I8), SCALES, integers(-9, 9, 32, 2, dtype=I8)),
             ["blockwise_shift_scale"], 2048),
    "4 bits in int8": (Q.constexpr_blockwise_shift_scale,
                       (integers(-8, 8, 32, 64, dtype=I8), SCALES), ["blockwise_shift_scale"],
                       1024),
    "3 bits in uint8": (to_half, (integers(0, 8, 32, 64), SCALES, integers(0, 8, 32, 2)),
                        ["blockwise_shift_scale"], 768),
    "minimum": (with_minimum, (integers(-8, 8, 32, 64, dtype=I8), SCALES, randoms(32, 2)),
                ["blockwise_shift_scale"], 1024),
    "float8": (Q.constexpr_blockwise_shift_scale, (randoms(32, 64).to(FP8), SCALES),
               ["lut_to_dense"], 2048),
    "float4": (to_float32, (integers(0, 256, 32, 32), SCALES.to(POWERS)), ["lut_to_dense"], 1024),
    "sparse": (Q.sparse_to_dense, (randoms(COUNT), MASK), ["sparse_to_dense"], 256),
    "sparse int8": (sparse_integers, (integers(-8, 8, COUNT, dtype=I8), MASK, SCALES),
                    ["sparse_to_dense", "blockwise_shift_scale"], 256),
}  # fmt: skip


def composites(program: OnnxProgram) -> list[str]:
    calls = [n for n in program.model.graph if n.domain == "ai.coreai"]
    return [n.op_type.partition(".")[0] for n in calls]


OPSETS = [(kind, 23) for kind in CASES]
OPSETS += [(kind, 18) for kind in CASES if kind != "table of float8"]  # ONNX casts it since 19


@pytest.mark.parametrize(("kind", "opset"), OPSETS)
def test_constants_are_packed(kind: str, opset: int, tmp_path: Path) -> None:
    decompress, parts, wanted, size = CASES[kind]
    module, x = Linear(decompress, parts).eval(), randoms(3, 64)
    program = coreai_onnx.convert(module, (x,), opset_version=opset)
    assert composites(program) == wanted
    for kernels in (False, True):
        assert_close(program.run(x, kernels=kernels)[0], module(x))
    program.save(tmp_path / "model.onnx")
    weights = onnx.load(tmp_path / "model.onnx").graph.initializer
    sizes = {int(np.prod(w.dims)) for w in weights if w.data_type == onnx.TensorProto.UINT8}
    assert size in sizes
    assert size == 2048 or 2048 not in sizes


COMPUTED = ("palette", "table of int8", "int8", "3 bits in uint8", "minimum", "sparse", "vectors")


@pytest.mark.parametrize("kind", COMPUTED)
def test_inputs_of_a_program(kind: str) -> None:
    decompress, parts, _, _ = CASES[kind]
    program = coreai_onnx.convert(decompress_module(decompress), parts)
    assert_close(program.run(*parts, kernels=False)[0], decompress(*parts))


def decompress_module(decompress: Decompress) -> torch.nn.Module:
    class Module(torch.nn.Module):
        def forward(self, *parts: torch.Tensor) -> torch.Tensor:
            return decompress(*parts)

    return Module()


@pytest.mark.parametrize("dtype", [torch.float16, FP8])
def test_floats_that_are_computed(dtype: torch.dtype) -> None:
    def decompress(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return Q.constexpr_blockwise_shift_scale(x.to(dtype), scale)

    parts = randoms(32, 64), SCALES
    program = coreai_onnx.convert(decompress_module(decompress), parts)
    assert_close(program.run(*parts, kernels=False)[0], decompress(*parts))


def test_two_calls_share_the_stream() -> None:
    def twice(indices: torch.Tensor, lut: torch.Tensor) -> torch.Tensor:
        return Q.lut_to_dense(indices, lut) + Q.lut_to_dense(indices, lut * 2)

    _, parts, _, _ = CASES["palette"]
    program = coreai_onnx.convert(Linear(twice, parts).eval(), (randoms(3, 64),))
    streams = {node.inputs[1] for node in program.model.graph if node.op_type == "lut_to_dense"}
    assert len(streams) == 1


def test_unknown_sizes_are_an_error() -> None:
    indices, lut = CASES["palette"][1]
    dims = ({0: torch.export.Dim.DYNAMIC}, None)
    with pytest.raises(LoweringError, match="sizes that are not known"):
        coreai_onnx.convert(
            decompress_module(Q.lut_to_dense), (indices, lut[:1]), dynamic_shapes=(dims,)
        )
