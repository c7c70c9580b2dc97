"""``torch.cond`` against torch, on both sides of its predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch.export import Dim

from coreai_onnx.lower import Context, IONames, ProgramLowering
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value
from tests.lower.checking import check, op_types, run_model
from tests.support.tolerances import assert_close

BATCH = ({0: Dim("batch")},)
X = torch.randn(3, 4)
OTHERS = [(torch.rand(5, 4),), (-torch.rand(2, 4),)]


class Model(torch.nn.Module):
    """A layer and a buffer that branches close over."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def graphs_of(model: ir.Model, op_type: str) -> list[ir.Graph]:
    """Return the graphs of the only node of an op type, wherever it is."""
    (node,) = [n for n in model.graph.all_nodes() if n.op_type == op_type]
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def test_branches_close_over_weights_and_return_several_tensors() -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        return torch.cond(
            x.sum() > 0,
            lambda y: (m.layer(y), (y > 0).to(torch.int8)),
            lambda y: (y + m.shift, (y < 0).to(torch.int8)),
            (x,),
        )

    model = check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS)
    assert op_types(model)[-1] == "If"
    assert all(not g.initializers and not g.inputs for g in graphs_of(model, "If"))


def test_a_predicate_of_a_symbolic_size() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 4, lambda y: y + y.shape[0], lambda y: y - 1, (x,))

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_branches_of_different_sizes_and_sizes_after_them() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        part = torch.cond(x.sum() > 0, lambda y: y[:2].clone(), lambda y: y.clone(), (x,))
        return part.new_full((part.shape[0], 2), 3.0)

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_sizes_that_only_a_branch_has() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 0,
            lambda y: y[y > 0.5].sum() + y[y > 0.5].shape[0],
            lambda y: y.nonzero().shape[0] * y.sum(),
            (x,),
        )

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_conditions_nested_in_conditions() -> None:
    def function(m: Model, x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            return torch.cond(y.max() > 0.9, m.layer, lambda z: z * m.shift, (y,))

        return torch.cond(x.sum() > 0, inner, lambda y: y.neg(), (x,))

    check(Model(function), X, dynamic_shapes=BATCH, others=[*OTHERS, (X.abs() * 9,)])


def test_a_branch_that_returns_what_is_outside_of_it() -> None:
    """A branch's output must be made in the branch: an Identity of the outer value."""

    def function(x: torch.Tensor) -> torch.Tensor:
        twice = x * 2
        return torch.cond(x.sum() > 0, lambda a, b: a.clone(), lambda a, b: b.clone(), (x, twice))

    model = check(function, X, dynamic_shapes=BATCH, others=OTHERS)
    assert [[n.op_type for n in g] for g in graphs_of(model, "If")] == [["Identity"]] * 2


def test_the_same_value_returned_twice() -> None:
    def function(x: torch.Tensor) -> Any:
        def both(y: torch.Tensor) -> Any:
            z = y.exp()
            return z, z.clone()

        return torch.cond(x.sum() > 0, both, lambda y: (y + 1, y + 2), (x,))

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8])
def test_dtypes(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y + 1, (x,))

    x = (torch.randn(3, 4) * 10).to(dtype)
    check(function, x, others=[(-x,)])


def test_complex_branches_keep_their_pairs() -> None:
    class Chooses(torch.nn.Module):
        def forward(self, p: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cond(p, lambda a, b: a.clone(), lambda a, b: b.clone(), (x, y))

    def copied(op: OpBuilder, self: Value, *, memory_format: Any = None) -> Value:
        return op.Identity(self)

    x, y = torch.randn(2, 3, 4, dtype=torch.complex64)
    program = torch.export.export(Chooses(), (torch.tensor(data=True), x, y))
    context = Context(opset=23, user_lowerings={"aten.clone.default": copied})
    model = ProgramLowering(program, context, IONames()).run().model([], "main")
    for p, want in ((True, x), (False, y)):
        (got,) = run_model(model, (torch.tensor(p), x, y))
        assert_close(got, torch.view_as_real(want))


def test_a_decomposed_program() -> None:
    def function(m: Model, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, m.layer, torch.nn.functional.silu, (x,))

    check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS, decompose=True)
