"""Rows, columns, diagonals and substitution on batches of matrices."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.lower.aten.linalg import matrix_steps
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import dims_of, set_dims
from tests.lower.checking import run_model
from tests.support.tolerances import assert_close

_SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 4, 4, dtype=torch.float64, generator=_SEED) + 3 * torch.eye(4)


def _start() -> tuple[OpBuilder, ir.Value, ir.Graph]:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    op = OpBuilder(Scope(graph, Names()), 23)
    x = set_dims(ir.Value(name="x", type=ir.TensorType(ir.DataType.DOUBLE)), (2, 4, 4))
    graph.inputs.append(x)
    return op, x, graph


def test_cuts() -> None:
    op, x, graph = _start()
    k = op.const(2)
    made = [
        matrix_steps.row(op, x, k),
        matrix_steps.column(op, x, k),
        matrix_steps.transposed(op, x),
        matrix_steps.diagonal(op, x),
        matrix_steps.identity(op, 2, 3),
    ]
    wanted = [X[:, 2:3], X[:, :, 2:3], X.mT, X.diagonal(dim1=1, dim2=2), torch.eye(2, 3).double()]
    graph.outputs.extend(made)
    for value, got, want in zip(
        made, run_model(ir.Model(graph, ir_version=10), [X]), wanted, strict=True
    ):
        assert dims_of(value) == tuple(want.shape)
        assert_close(got, want)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_substitution(upper: bool, unit: bool) -> None:
    op, x, graph = _start()
    ones = torch.ones(2, 4, 3, dtype=torch.float64)
    graph.outputs.append(
        matrix_steps.solve_triangular(op, x, op.const(ones), upper=upper, unit=unit)
    )
    (got,) = run_model(ir.Model(graph, ir_version=10), [X])
    assert_close(got, torch.linalg.solve_triangular(X, ones, upper=upper, unitriangular=unit))


def test_common_batches() -> None:
    assert matrix_steps.common_batch((2, 1), (3,), ()) == [2, 3]
