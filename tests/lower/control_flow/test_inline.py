"""Wrappers around graphs: they leave no trace in the model."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.strict_mode import strict_mode
from torch.export import Dim

from coreai_onnx.lower import Context, IONames, ProgramLowering
from coreai_onnx.lower.control_flow.inline import INLINED
from tests.lower.checking import check, op_types, run_model
from tests.lower.control_flow.test_cond import BATCH, OTHERS, Model, X
from tests.support.tolerances import assert_close


def test_no_grad_region() -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = m.layer(x)
        return y + 1

    with torch.enable_grad():
        program = torch.export.export(Model(function), (X,))
    assert any("set_grad" in str(n.target) for n in program.graph.nodes)
    model = ProgramLowering(program, Context(opset=23), IONames()).run().model([], "main")
    assert set(op_types(model)) == {"Gemm", "Add"}
    (got,) = run_model(model, (X,))
    assert_close(got, program.module()(X))


def test_autocast_casts_what_torch_casts() -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.layer(x), x.exp()

    model = check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS)
    assert "Cast" in op_types(model)


def test_strict_mode_and_hints() -> None:
    def function(x: torch.Tensor) -> Any:
        (y,) = hints_wrapper(lambda z: (z * 2,), (x,), {}, hints={"fast": True})
        return strict_mode(lambda z: (z.sin(), z + 1), (y,))

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_a_compiled_region_called_twice() -> None:
    @torch.compiler.nested_compile_region
    def region(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return region(region(x))

    program = torch.export.export(Twice(), (X,), dynamic_shapes=({0: Dim("batch")},), strict=True)
    assert any("invoke_subgraph" in str(n.target) for n in program.graph.nodes)
    model = ProgramLowering(program, Context(opset=23), IONames()).run().model([], "main")
    assert op_types(model) == ["Sin", "Add"] * 2
    for x in (X, OTHERS[0][0]):
        (got,) = run_model(model, (x,))
        assert_close(got, x.sin().add(1).sin().add(1))


def test_every_inlined_wrapper_is_an_op_of_torch() -> None:
    import torch._dynamo

    known = set(torch._ops._higher_order_ops)
    assert set(INLINED) - {"run_const_graph", "local_map_hop"} <= known


def test_tracepoints_pass_their_values_on() -> None:
    program = torch.export.export(Model(lambda m, x: m.layer(x) * 2), (X,))
    graph = program.graph_module.graph
    linear = next(n for n in graph.nodes if n.op == "call_function")
    with graph.inserting_after(linear):
        mark = graph.call_function(
            torch.ops.higher_order._export_tracepoint, (linear,), {"kind": "a", "path": "b"}
        )
    with graph.inserting_after(mark):
        got = graph.call_function(operator.getitem, (mark, 0))
    mark.meta["val"], got.meta["val"] = (linear.meta["val"],), linear.meta["val"]
    linear.replace_all_uses_with(got, delete_user_cb=lambda user: user not in (mark, got))
    model = ProgramLowering(program, Context(opset=23), IONames()).run().model([], "main")
    assert_close(run_model(model, (X,))[0], program.module()(X))
