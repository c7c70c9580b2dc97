"""One node taken apart by torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from coreai_onnx.export.torch_export import TorchExport
from coreai_onnx.lower.walk.decompose import decompose, decomposition_table, trace


def node_of(function: Any, *args: torch.Tensor, dynamic: Any = None) -> fx.Node:
    """Return the last call of an exported function."""

    class Module(torch.nn.Module):
        def forward(self, *xs: torch.Tensor) -> Any:
            return function(*xs)

    shapes = None if dynamic is None else (tuple(dynamic),)
    program = torch.export.export(Module(), args, dynamic_shapes=shapes)
    return [n for n in program.graph.nodes if n.op == "call_function"][-1]


def test_a_composite_becomes_its_parts() -> None:
    node = node_of(torch.nn.functional.hardswish, torch.randn(3))
    body = decompose(node)
    assert body is not None
    targets = [str(n.target) for n in body.graph.nodes if n.op == "call_function"]
    assert str(node.target) not in targets
    assert targets


def test_the_symbols_of_the_program_stay() -> None:
    node = node_of(
        torch.nn.functional.hardswish, torch.randn(3), dynamic=[{0: torch.export.Dim("n")}]
    )
    body = decompose(node)
    assert body is not None
    (placeholder,) = [n for n in body.graph.nodes if n.op == "placeholder"]
    argument = node.args[0]
    assert isinstance(argument, fx.Node)
    assert placeholder.meta["val"].shape[0].node.expr == argument.meta["val"].shape[0].node.expr


def test_an_op_without_a_rule() -> None:
    assert decompose(node_of(torch.sort, torch.randn(3))) is None


def test_placeholders_stand_for_nodes_only() -> None:
    body = decompose(node_of(lambda a, b: torch.addcmul(a, a, b, value=2.5), *torch.randn(2, 3)))
    assert body is not None
    assert len([n for n in body.graph.nodes if n.op == "placeholder"]) == 3


def test_a_trace_of_a_function() -> None:
    node = node_of(torch.sin, torch.randn(3))
    argument = node.args[0]
    assert isinstance(argument, fx.Node)
    traced = trace(lambda x: x.sin() + 1, [argument.meta["val"]])
    targets = [str(n.target) for n in traced.graph.nodes if n.op == "call_function"]
    assert targets == ["aten.sin.default", "aten.add.Tensor"]


def test_the_table_is_made_once() -> None:
    assert decomposition_table() is decomposition_table()


def test_a_question_about_a_size_is_not_answered_for_the_example() -> None:
    def columns(x: torch.Tensor) -> torch.Tensor:
        count = (x.shape[0] + 7) // 8  # 1 for the example
        column = x.new_ones(count, 1)
        return torch.einsum("ab,cb->ac", column, column)

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return columns(x)

    export = TorchExport(
        (torch.randn(5),), {}, ({0: torch.export.Dim("n")},), deferred=True, oblivious=True
    )
    program = export(Module())
    (node,) = [n for n in program.graph.nodes if str(n.target) == "aten.einsum.default"]
    before = len(node.meta["val"].fake_mode.shape_env.guards)
    body = decompose(node)
    assert body is not None
    assert len(node.meta["val"].fake_mode.shape_env.guards) == before
