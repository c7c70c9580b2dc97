"""Passes that rebuild a graph operator by operator."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

from coreai_onnx.delegation import ExportPass, ProxyValue, edge_ops, to_edge
from coreai_onnx.delegation.export_pass import inferred
from tests.tolerances import assert_close

aten = torch.ops.aten


class ReluToSigmoid(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        if op == edge_ops.edge.aten.relu.default:
            op = edge_ops.edge.aten.sigmoid.default
        return super().call_operator(op, args, kwargs, meta)


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.relu() + 1, lambda x: x - 1, (x,))


def targets(program) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


def test_an_operator_is_replaced_and_the_rest_keeps_names_and_types() -> None:
    program = to_edge(
        export(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), (torch.randn(2, 3),))
    ).exported_program()
    made = ReluToSigmoid()(program.graph_module).graph_module
    before, after = list(program.graph.nodes), list(made.graph.nodes)
    assert [n.name for n in after[:-2]] == [n.name for n in before[:-2]]
    assert after[-3].meta["val"] is before[-3].meta["val"]
    assert after[-2].target is aten.sigmoid.default
    assert after[-2].meta["val"].shape == (2, 4)
    assert after[-2].meta["stack_trace"] == before[-2].meta["stack_trace"]
    assert targets(program)[-1] == "aten.relu.default", "the given graph is unchanged"


def test_branches_are_rebuilt() -> None:
    x = torch.tensor([1.0, 2.0])
    manager = to_edge(export(Branches(), (x,))).transform([ReluToSigmoid()])
    (y,) = manager.finish().run(x)
    assert_close(y, x.sigmoid() + 1)


def test_sizes_of_new_operators_stay_symbolic() -> None:
    class Doubles(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            if op != aten.relu.default:
                return super().call_operator(op, args, kwargs, meta)
            assert isinstance(args[0], ProxyValue)
            assert args[0].to_tensor().dtype == torch.float32
            return super().call_operator(aten.cat.default, ([args[0], args[0]],), {}, meta)

    x = torch.randn(3, 2)
    exported = export(torch.nn.ReLU(), (x,), dynamic_shapes=({0: Dim("rows")},))
    manager = to_edge(exported).transform([Doubles()])
    for rows in (1, 5):
        x = torch.randn(rows, 2)
        (y,) = manager.finish().run(x)
        assert_close(y, torch.cat([x, x]))


def test_a_number_is_not_a_tensor() -> None:
    graph = torch.fx.Graph()
    with pytest.raises(TypeError, match="n is a int, not a tensor"):
        ProxyValue(3, graph.placeholder("n")).to_tensor()


def test_an_operator_without_tensors_gets_the_fake_mode_of_its_result() -> None:
    program = export(torch.nn.ReLU(), (torch.randn(2),))
    like = next(iter(program.graph.nodes)).meta["val"]
    made = inferred(aten.zeros.default, ([4],), {}, like=like)
    assert made.shape == (4,)
    assert type(made) is type(like)
