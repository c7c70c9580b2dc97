"""Graphs inside nodes: names, symbols, constants and places."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

from coreai_onnx import convert
from coreai_onnx.lower import Context
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import set_dims
from coreai_onnx.lower.walk.walker import Walker
from tests.lower.checking import check, lower_module, run_model
from tests.lower.control_flow.test_cond import BATCH, OTHERS, Model, X, graphs_of
from tests.support.tolerances import assert_close


def loop_with_condition(x: torch.Tensor) -> Any:
    """A loop around a condition, with numbers and sizes of their own."""

    def body(i: int, y: torch.Tensor) -> Any:
        z = torch.cond(y.sum() > 0, lambda a: a * 2 + a[a > 0].shape[0], lambda a: a - 1, (y,))
        return i + 1, z

    return while_loop(lambda i, y: i < y.shape[0], body, (0, x))


def test_names_are_unique_in_the_whole_model() -> None:
    model = lower_module(loop_with_condition, (X,), BATCH)
    names = [v.name for n in model.graph.all_nodes() for v in n.outputs]
    names += [v.name for op in ("Loop",) for g in graphs_of(model, op) for v in g.inputs]
    names += list(model.graph.initializers) + [v.name for v in model.graph.inputs]
    assert len(names) == len(set(names))
    nodes = [n.name for n in model.graph.all_nodes()]
    assert len(nodes) == len(set(nodes))


def test_constants_land_at_the_root() -> None:
    model = lower_module(loop_with_condition, (X,), BATCH)
    assert model.graph.initializers
    for op_type in ("Loop", "If"):
        assert all(not g.initializers for g in graphs_of(model, op_type))


def test_nested_nodes_know_their_place() -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, m.layer, lambda y: y * m.shift, (x,))

    model = lower_module(Model(function), (X,))
    for graph in graphs_of(model, "If"):
        assert all("coreai.source" in n.metadata_props for n in graph)


def test_a_loop_inside_a_function_body() -> None:
    """A function cannot hold initializers: constants are nodes in front of the loop."""

    class Halving(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            def body(i: int, y: torch.Tensor) -> Any:
                return i + 1, torch.cond(y.sum() > 1, lambda a: a / 2, lambda a: a + 1, (y,))

            return while_loop(lambda i, y: i < y.shape[0], body, (0, x))

    program = torch.export.export(Halving(), (X,), dynamic_shapes=({0: Dim("n")},))
    names, context = Names(), Context(opset=23)
    x = ir.Value(name=names.unique("x"), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 23}, name="halving")
    scope = Scope(graph, names, constants_as_nodes=True)
    (node,) = [n for n in program.graph.nodes if n.op == "placeholder"]
    scope.dims.bind_axes(set_dims(x, context.dims(node.meta["val"])), x.meta["dims"])
    results = Walker(context, OpBuilder(scope, 23), program.graph_module).walk(program.graph, [x])
    graph.outputs.append(results[1])
    assert not graph.initializers

    function = ir.Function("test", "halving", graph=graph, attributes=[])
    main_in = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 4]))
    call = ir.node("halving", [main_in], domain="test")
    call.outputs[0].name, call.outputs[0].dtype = "y", ir.DataType.FLOAT
    call.outputs[0].shape = ir.Shape(["n", 4])
    main = ir.Graph(
        [main_in], call.outputs, nodes=[call], opset_imports={"": 23, "test": 1}, name="main"
    )
    proto = ir.to_proto(ir.Model(main, ir_version=10, functions=[function]))
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for sample in (X, torch.ones(5, 4)):
        (got,) = session.run(None, {"x": sample.numpy()})
        assert_close(got, Halving()(sample)[1])


@pytest.mark.slow
def test_nested_graphs_survive_the_passes() -> None:
    """Through the whole road: converted, optimized, run on several sizes."""

    class All(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            def halve(i: int, y: torch.Tensor) -> Any:
                z = torch.cond(y.sum() > 1, lambda a: a / 2, lambda a: self.layer(a) + i, (y,))
                return i + 1, z

            start = torch.cond(x.sum() > 0, lambda a: self.layer(a), lambda a: a + 1, (x,))  # noqa: PLW0108 - torch traces functions only
            total, rows = scan(lambda c, y: (c + y, c * y), torch.zeros(4), start, dim=0)
            count, result = while_loop(lambda i, y: i < y.shape[0], halve, (0, rows))
            return result * count, total

    module = All().eval()
    program = convert(module, (X,), dynamic_shapes=({0: Dim("n")},))
    for sample in (X, -X, torch.rand(6, 4)):
        with torch.no_grad():
            expected = module(sample)
        for got, want in zip(run_model(program.model, (sample,)), expected, strict=True):
            assert_close(got, want)


def inner_cond(m: Model, row: torch.Tensor) -> torch.Tensor:
    return torch.cond(row.sum() > 0, lambda y: m.layer(y), lambda y: y * m.shift, (row,))  # noqa: PLW0108 - torch traces functions only


def inner_while(m: Model, row: torch.Tensor) -> torch.Tensor:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, m.layer(y) * 0.5), (0, row))[1]


def inner_scan(m: Model, row: torch.Tensor) -> torch.Tensor:
    def step(carry: torch.Tensor, x: torch.Tensor) -> Any:
        return carry + x, carry * x * m.shift.sum()

    return scan(step, row.sum() * 0, row, dim=0)[1]


def inner_map(m: Model, row: torch.Tensor) -> torch.Tensor:
    return map_(lambda x: x * m.shift.sum(), row)


def inner_associative(m: Model, row: torch.Tensor) -> torch.Tensor:
    return associative_scan_op(lambda a, b: [a + b], [m.layer(row)], ())[0]


def outer_cond(x: torch.Tensor, f: Any) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: f(x[0]) + x, lambda x: f(-x[-1]) * x, (x,))


def outer_while(x: torch.Tensor, f: Any) -> torch.Tensor:
    return while_loop(lambda i, y: i < y.shape[0], lambda i, y: (i + 1, f(y[0]) + y), (0, x))[1]


def outer_scan(x: torch.Tensor, f: Any) -> torch.Tensor:
    return scan(lambda c, row: (c * 0.5 + f(row), f(c) + row), x[0] * 0, x, dim=0)[1]


def outer_map(x: torch.Tensor, f: Any) -> torch.Tensor:
    return map_(lambda row: f(row) + row, x)


PAIRS = (
    (outer_cond, inner_scan),
    (outer_cond, inner_associative),
    (outer_while, inner_map),
    (outer_while, inner_while),
    (outer_scan, inner_cond),
    (outer_scan, inner_while),
    (outer_map, inner_scan),
    (outer_map, inner_while),
)


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_one_form_in_another(outer: Any, inner: Any) -> None:
    """Around parameters, with a dynamic number of rows; every pair was run by hand."""

    def function(m: Model, x: torch.Tensor) -> torch.Tensor:
        return outer(x, lambda row: inner(m, row))

    check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS)
