"""Scans with several inputs and states, along any axis."""

from __future__ import annotations

import onnx_ir as ir
import torch

from coreai_onnx.lower.aten.loops.scanning import final_state, scan, scan_with_outputs
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import Value, dims_of, set_dims
from tests.lower.checking import run_model
from tests.support.tolerances import assert_close

X = torch.arange(12.0).view(3, 4)


def _step(op: OpBuilder, state: list[ir.Value], given: list[ir.Value]) -> list[ir.Value]:
    return [op.Add(state[0], op.Mul(given[0], given[1])), op.Max(state[1], given[0])]


def _model(axis: int, *, stacked: bool) -> ir.Model:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    op = OpBuilder(Scope(graph, Names()), 23)
    x = set_dims(ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT)), (3, 4))
    graph.inputs.append(x)
    zeros = op.const(torch.zeros(4 if axis == 0 else 3))
    run = scan if stacked else final_state
    for result in run(op, [x, x], axis, [zeros, zeros], _step):
        expected = (3, 4) if stacked else dims_of(zeros)
        assert dims_of(result) == expected
        graph.outputs.append(result)
    return ir.Model(graph, ir_version=10)


def test_stacked_states() -> None:
    for axis in (0, 1):
        total, greatest = run_model(_model(axis, stacked=True), [X])
        assert_close(total, (X * X).cumsum(axis))
        assert_close(greatest, X.cummax(axis).values)


def test_final_states() -> None:
    for axis in (0, 1):
        total, greatest = run_model(_model(axis, stacked=False), [X])
        assert_close(total, (X * X).sum(axis))
        assert_close(greatest, X.amax(axis))


def test_outputs_of_steps() -> None:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    op = OpBuilder(Scope(graph, Names()), 23)
    x = set_dims(ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT)), (3, 4))
    graph.inputs.append(x)

    def step(inner: OpBuilder, before: ir.Value, given: list[ir.Value]) -> tuple[Value, Value]:
        return inner.Add(before, given[0]), inner.Mul(before, 2.0)

    last, outputs = scan_with_outputs(op, op.const(torch.zeros(4)), [x], step)
    graph.outputs.extend([last, set_dims(outputs, (3, 4))])
    total, before = run_model(ir.Model(graph, ir_version=10), [X])
    assert_close(total, X.sum(0))
    assert_close(before, 2 * (X.cumsum(0) - X))
