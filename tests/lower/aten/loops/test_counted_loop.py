"""Loops of a known number of steps: every step, or until a test fails."""

from __future__ import annotations

import onnx_ir as ir
import torch

from coreai_onnx.lower.aten.loops.counted_loop import repeat
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import dims_of
from tests.lower.checking import run_model


def _sum(count: int, limit: int | None) -> float:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    op = OpBuilder(Scope(graph, Names()), 23)

    def step(op: OpBuilder, k: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        return [op.Add(state[0], k)]

    def below(op: OpBuilder, state: list[ir.Value]) -> ir.Value:
        result: ir.Value = op.Less(state[0], limit)
        return result

    (total,) = repeat(op, count, [op.const(0)], step, None if limit is None else below)
    assert dims_of(total) == ()
    assert total.dtype == ir.DataType.INT64
    graph.outputs.append(total)
    (got,) = run_model(ir.Model(graph, ir_version=10), [])
    return float(torch.as_tensor(got))


def test_all_steps() -> None:
    assert _sum(5, None) == 0 + 1 + 2 + 3 + 4
    assert _sum(0, None) == 0


def test_early_end() -> None:
    assert _sum(100, 10) == 0 + 1 + 2 + 3 + 4
