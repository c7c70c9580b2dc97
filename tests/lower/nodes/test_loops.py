"""Loops of a known and an unknown number of steps, and scans along an axis."""

from __future__ import annotations

import onnx_ir as ir
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import (
    any_true,
    final_state,
    repeat,
    repeat_while,
    scan,
    scan_with_outputs,
)
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import Value, dims_of, set_dims
from tests.lower.checking import run_model
from tests.lower.nodes.test_numerics import compute
from tests.support.tolerances import assert_close


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


def halve_until_below_one(op: OpBuilder, x: Value) -> Value:
    """Halve each element that is at least one, and count the rounds in a second value."""

    def large(inner: OpBuilder, state: list[Value]) -> Value:
        return any_true(inner, inner.GreaterOrEqual(state[0], 1.0))

    def step(inner: OpBuilder, state: list[Value]) -> list[Value]:
        again = inner.GreaterOrEqual(state[0], 1.0)
        return [
            inner.Where(again, inner.Mul(state[0], 0.5), state[0]),
            inner.Add(state[1], inner.Cast(again, to=1)),
        ]

    small, rounds = repeat_while(op, [x, op.Mul(x, 0.0)], large, step)
    assert dims_of(small) == dims_of(x)
    return op.Add(small, op.Mul(rounds, 10.0))


def test_rounds_differ_by_element():
    x = torch.tensor([0.5, 1.0, 9.0])
    assert_close(compute(halve_until_below_one, x), torch.tensor([0.5, 10.5, 40.5625]))


def test_no_round_at_all():
    assert_close(compute(halve_until_below_one, torch.tensor([0.25])), torch.tensor([0.25]))
    assert_close(compute(halve_until_below_one, torch.empty(0, 2)), torch.empty(0, 2))


def test_any_true():
    for values in ([False, True], [False, False]):
        got = compute(any_true, torch.tensor(values))
        assert_close(got, torch.tensor(any(values)))
    assert_close(compute(any_true, torch.empty(0, dtype=torch.bool)), torch.tensor(False))


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
