"""What one conversion knows."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import sympy
import torch
from torch import fx
from torch.export import Dim

from coreai_onnx.errors import Where
from coreai_onnx.lower.walk.context import Context

N = sympy.Symbol("n", integer=True, positive=True)


def symbolic_sizes() -> tuple[Any, Any]:
    """Return a symbolic size and a comparison of it, as an exported program has them."""

    class Sizes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_ones(x.shape[0] * 2 + 1)

    program = torch.export.export(Sizes(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("n")},))
    (x,) = [n for n in program.graph.nodes if n.op == "placeholder"]
    size = x.meta["val"].shape[0]
    return size, size > 5


def test_sizes_come_under_the_names_of_the_conversion() -> None:
    size, is_big = symbolic_sizes()
    context = Context(opset=23, symbols={size.node.expr: N})
    assert context.dim(size) == N
    assert context.dim(2 * size + 1) == 2 * N + 1
    assert context.expression(is_big) == (N > 5)
    assert context.expression(7) == 7


def test_a_symbol_replaced_by_a_number_leaves_a_number() -> None:
    size, is_big = symbolic_sizes()
    context = Context(opset=23, symbols={size.node.expr: sympy.Integer(6)})
    assert context.dim(2 * size + 1) == 13
    assert isinstance(context.dim(size), int)
    assert context.expression(is_big) is True
    assert isinstance(context.expression(size), int)


def test_missing_ops_are_collected_with_what_they_come_from() -> None:
    context = Context(opset=23)
    for module in ("a", "b"):
        context.miss("aten.x.default", Where(module))
    context.miss("prims.y.default", Where("c"), "aten.z.default")
    first, second = context.missing
    assert (first.name, [p.module for p in first.places]) == ("aten.x.default", ["a", "b"])
    assert second.name == "aten.z.default"
    assert [p.module for p in second.places] == ["c"]


def graph_module(*, has_sizes_of_its_own: bool) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    if has_sizes_of_its_own:
        x.meta["unbacked_bindings"] = {}
    graph.output(x)
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(("own", "count"), [(False, 1), (True, 2)])
def test_decompositions_are_traced_once_unless_they_make_sizes(own: bool, count: int) -> None:
    context, traced = Context(opset=23), []

    def trace() -> fx.GraphModule:
        traced.append(1)
        return graph_module(has_sizes_of_its_own=own)

    for _ in range(2):
        assert context.decomposed("key", trace) is not None
    assert len(traced) == count


def test_that_nothing_decomposes_an_op_is_remembered() -> None:
    context, asked = Context(opset=23), []
    for _ in range(2):
        assert context.decomposed("key", lambda: asked.append(1)) is None
    assert asked == [1]


def test_functions_are_kept_once() -> None:
    class Calls:
        def functions_at(self, opset: int) -> list[ir.Function]:
            graph = ir.Graph([], [], nodes=[], opset_imports={"": opset})
            return [ir.Function("test", "f", graph=graph, attributes=[])]

        def __call__(self) -> None:
            raise AssertionError("not called")

    outer, context = Context(opset=20), Context(opset=20)
    context.share(outer)
    context.keep_functions(Calls())
    context.keep_functions(Calls())
    context.keep_functions(lambda: None)
    assert [f.name for f in outer.functions] == ["f"]
    assert outer.functions[0].opset_imports[""] == 20
