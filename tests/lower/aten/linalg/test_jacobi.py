"""Rounds of rotations: every pair meets, and matrices become diagonal."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.lower.aten.linalg.jacobi import eigen, rotations
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import set_dims
from tests.lower.checking import run_model
from tests.support.tolerances import assert_close


def _start(size: int) -> tuple[OpBuilder, ir.Value, ir.Graph]:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    x = set_dims(ir.Value(name="x", type=ir.TensorType(ir.DataType.DOUBLE)), (size, size))
    graph.inputs.append(x)
    return OpBuilder(Scope(graph, Names()), 23), x, graph


def _symmetric(size: int) -> torch.Tensor:
    x = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    return x + x.mT


@pytest.mark.parametrize("size", [2, 5, 6])
def test_every_pair_meets_once(size: int) -> None:
    op, x, graph = _start(size)
    rounds = size - 1 if size % 2 == 0 else size
    graph.outputs.extend(rotations(op, x, op.const(t)) for t in range(rounds))
    a = _symmetric(size)
    met = torch.zeros(size, size)
    for j in run_model(ir.Model(graph, ir_version=10), [a]):
        turn = torch.as_tensor(j)
        pairs = (turn != 0) & ~torch.eye(size, dtype=torch.bool)
        met += pairs
        assert_close((turn.mT @ turn).numpy(), torch.eye(size).double())
        assert_close((turn.mT @ a @ turn)[pairs].numpy(), torch.zeros(int(pairs.sum())).double())
    assert torch.equal(met, 1 - torch.eye(size))


@pytest.mark.parametrize("size", [1, 4, 7])
def test_eigenvalues_and_vectors(size: int) -> None:
    op, x, graph = _start(size)
    graph.outputs.extend(eigen(op, x))
    a = _symmetric(size)
    values, vectors = (torch.as_tensor(v) for v in run_model(ir.Model(graph, ir_version=10), [a]))
    assert_close(values.numpy(), torch.linalg.eigvalsh(a))
    assert_close((a @ vectors).numpy(), vectors * values)
