"""The walk: missing ops, names, dtypes and places."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coreai_onnx.errors import LoweringError, UnsupportedOpsError
from coreai_onnx.lower import Context, IONames, ProgramLowering
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value
from tests.lower.checking import check, lower_module

X = torch.randn(3, 4)


def lower(module: torch.nn.Module, lowerings: Any = None) -> Any:
    program = torch.export.export(module, (X,))
    context = Context(opset=23, user_lowerings=lowerings or {})
    return ProgramLowering(program, context, IONames()).run().model([], "main")


class Inner(torch.nn.Module):
    """Calls two ops nothing can lower."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.ops.coreai_walker.first(x)
        return torch.ops.coreai_walker.second(first) + torch.ops.coreai_walker.first(first)


class Outer(torch.nn.Module):
    """Holds the inner module twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Inner(), Inner()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def ops() -> Any:
    """Two ops without lowering or decomposition."""
    with torch.library._scoped_library("coreai_walker", "FRAGMENT") as library:
        for name in ("first", "second"):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, torch.clone, "CPU")
            library.impl(name, torch.empty_like, "Meta")
        yield torch.ops.coreai_walker


def test_all_missing_ops_are_reported_with_their_places(ops: Any) -> None:
    with pytest.raises(UnsupportedOpsError) as caught:
        lower(Outer())
    found = {op.name: op for op in caught.value.ops}
    assert list(found) == ["coreai_walker.first.default", "coreai_walker.second.default"]
    places = found["coreai_walker.first.default"].places
    assert [p.module for p in places] == ["blocks.0", "blocks.0", "blocks.1", "blocks.1"]
    assert all(p.module_class == "Inner" for p in places)
    assert places[0].source.startswith("tests/lower/walk/test_walker.py:")
    assert places[0].code == "first = torch.ops.coreai_walker.first(x)"
    assert "coreai_walker::first.default" in str(caught.value)


def test_a_user_lowering_wins_over_the_built_in(ops: Any) -> None:
    def zero(op: OpBuilder, self: Value) -> Value:
        return op.Mul(self, 0.0)

    class Sine(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    model = lower(Sine(), {"aten.sin.default": zero})
    assert [n.op_type for n in model.graph] == ["Mul"]


def test_a_failing_lowering_says_where(ops: Any) -> None:
    def broken(op: OpBuilder, x: Value) -> Value:
        raise KeyError("gone")

    with pytest.raises(LoweringError, match=r"first\.default: KeyError: 'gone'") as caught:
        lower(Inner(), {"coreai_walker.first.default": broken})
    assert "tests/lower/walk/test_walker.py:" in str(caught.value)


def test_a_result_of_the_wrong_rank_is_refused(ops: Any) -> None:
    def flat(op: OpBuilder, x: Value) -> Value:
        return op.reshape(x, [12])

    with pytest.raises(LoweringError, match="made rank 1, torch says 2"):
        lower(Inner(), {"coreai_walker.first.default": flat})


def test_a_result_has_the_dtype_torch_says(ops: Any) -> None:
    def counts(op: OpBuilder, x: Value) -> Value:
        return op.Cast(x, to=7)

    names = ("coreai_walker.first.default", "coreai_walker.second.default")
    with pytest.raises(LoweringError, match=r"coreai_walker.first.default: .* which is FLOAT"):
        lower(Inner(), dict.fromkeys(names, counts))


def test_values_are_called_what_the_program_calls_them() -> None:
    model = lower_module(lambda x: (x.sin() * 2).cos(), (X,))
    assert [n.outputs[0].name for n in model.graph] == ["sin", "mul", "output"]


def test_values_read_from_tensors_are_sizes() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check(size >= 1)
        torch._check(size <= 4)
        return x.new_full((size, 2), 1.5) * size

    three, two = torch.tensor(3), torch.tensor(2)
    check(function, X, three, others=[(X, two)])


def test_a_number_where_a_tensor_belongs_becomes_one() -> None:
    class Literal(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ops.aten._to_copy.default(x.new_tensor(2.5), dtype=torch.float32)

    program = torch.export.export(Literal(), (X,))
    for node in program.graph.nodes:
        if str(node.target) == "aten._to_copy.default":
            node.args = (2.5,)
    program.graph.eliminate_dead_code()
    model = ProgramLowering(program, Context(opset=23), IONames()).run().model([], "main")
    assert [n.op_type for n in model.graph] == ["Add"]


def test_decompositions_may_ask_for_all_sizes_at_once() -> None:
    auto = dict.fromkeys(range(2), torch.export.Dim.AUTO)
    a, b = torch.arange(6).reshape(2, 3), torch.arange(20).reshape(4, 5)
    check(torch.kron, a, b, dynamic_shapes=(auto, auto))


def test_a_call_that_a_lowering_does_not_support_is_decomposed() -> None:
    module = torch.nn.SiLU()
    kept = lower(module, {"aten.silu.default": lambda op, self: op.Identity(self)})
    assert [node.op_type for node in kept.graph] == ["Identity"]
    decomposed = lower(module, {"aten.silu.default": lambda op, self: NotImplemented})
    assert {"Sigmoid", "Mul"} <= {node.op_type for node in decomposed.graph}
