"""Lookups in tables of few bits become onnxruntime's op where it computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.passes.contrib.embedding_nbits import contrib_embedding_nbits
from coreai_onnx.program import OnnxProgram
from tests.passes.rewriting import optimize_for, run, run_passes
from tests.support.tolerances import assert_close
from tools.bench.composite_model import composite_model

NAME = "embedding_nbits"
INDICES = torch.tensor([[0, 9, -1], [3, -10, 3]])


def call(
    bits: int,
    *,
    group: int = 32,
    dtype: torch.dtype = torch.float32,
    indices: torch.Tensor = INDICES,
    **more: Any,
) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """Return a model of a lookup in a constant table, 10 × 3 groups, and its inputs."""
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 256, (10, 3, group * bits // 8), generator=generator)
    zeros = torch.randint(0, more.get("above", 1 << bits), (10, 3), generator=generator)
    inputs: list[torch.Tensor | None] = [
        (torch.rand(10, 3, generator=generator) / 64).to(dtype),
        codes.to(torch.uint8),
        indices,
        zeros.to(more["zeros"]) if "zeros" in more else None,
        torch.randn(1 << bits, generator=generator).to(dtype) if "palette" in more else None,
    ]
    if "like" in more:
        inputs += [None] * 4 + [torch.zeros((), dtype=more["like"])]
    attributes = {"bits": bits, "group_size": group}
    proto = composite_model(NAME, inputs, attributes, constants=[0, 1, 3, 4, 9])
    return ir.from_proto(proto), {"indices": indices.numpy()}


@pytest.mark.parametrize("zeros", [{}, {"zeros": torch.uint8}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("bits", "group"), [(8, 16), (4, 32), (2, 64)])
def test_lookups_are_onnxruntimes(
    bits: int, group: int, dtype: torch.dtype, zeros: dict[str, Any]
) -> None:
    model, feeds = call(bits, group=group, dtype=dtype, **zeros)
    before = run(model, feeds)
    report = optimize_for(model, "contrib")
    assert report.counts["contrib_embedding_nbits"] == 1
    (node,) = model.graph
    assert (node.domain, node.op_type) == ("com.microsoft", "GatherBlockQuantized")
    assert_close(run(model, feeds), before)


def test_narrow_scales_are_cast_for_wide_rows() -> None:
    model, feeds = call(8, dtype=torch.float16, like=torch.float32)
    before = run(model, feeds)
    optimize_for(model, "contrib")
    assert [node.op_type for node in model.graph] == ["GatherBlockQuantized"]
    (after,) = run(model, feeds)
    assert after.dtype == np.float32
    assert_close([after], before)


@pytest.mark.parametrize(
    ("bits", "more", "reason"),
    [
        (3, {}, "the op does not support 3-bit codes"),
        (4, {"group": 48}, "the op does not support this block size"),
        (4, {"group": 8}, "the op does not support this block size"),
        (4, {"palette": True}, "the op does not support a palette"),
        (
            4,
            {"zeros": torch.float32},
            "zero points must be integers that fit into the bits of a code",
        ),
        (
            4,
            {"zeros": torch.uint8, "above": 200},
            "zero points must be integers that fit into the bits of a code",
        ),
        (4, {"dtype": torch.float64}, "the op does not support these dtypes"),
        (4, {"like": torch.float64}, "the op does not support these dtypes"),
        (4, {"like": torch.float16}, "the scales are not exact in the dtype of the rows"),
    ],
)
def test_others_stay(bits: int, more: dict[str, Any], reason: str) -> None:
    model, _ = call(bits, **more)
    report = run_passes(model, [contrib_embedding_nbits])
    assert report.total == 0
    assert [m.miss.reason for m in report.near_misses] == [reason]


def test_an_older_onnxruntime_has_the_body() -> None:
    model, _ = call(4)
    optimize_for(model, "contrib", minimum_onnxruntime="1.26")
    assert [node.domain for node in model.graph] == ["ai.coreai"]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def test_a_tied_table_is_stored_once() -> None:
    ids = torch.tensor([[1, 999, 5]])
    program = coreai_onnx.convert(Tied().eval(), (ids,)).quantize(4)
    before = program.run(ids, kernels=False)[0]
    size = sum(t.const_value.nbytes for t in program.model.graph.initializers.values())
    program.optimize(target="contrib")
    kinds = [node.op_type for node in program.model.graph]
    assert sorted(kinds) == ["Cast", "GatherBlockQuantized", "MatMulNBits", "Reshape"]
    after = sum(t.const_value.nbytes for t in program.model.graph.initializers.values())
    assert after < size  # both read one table of scales, zero points are packed
    assert_close(program.run(ids)[0], before)


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(200, 96)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Lookup(), Lookup()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.first(ids) + self.second(ids)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_in_a_function_that_gets_the_table(bits: int) -> None:
    ids = torch.tensor([[1, 199, 5]])
    program: OnnxProgram = coreai_onnx.convert(
        Both().eval(), (ids,), externalize_modules=[Lookup]
    ).quantize(bits)
    before = program.run(ids, kernels=False)[0]
    program.optimize(target="contrib")
    (function,) = program.model.functions.values()
    assert "GatherBlockQuantized" in [node.op_type for node in function]
    assert_close(program.run(ids)[0], before)
