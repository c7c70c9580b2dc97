"""A program with another graph computes what that graph does, with the weights of the first."""

from __future__ import annotations

import torch

from coreai_onnx.export.functionalize.replaced_graph import copy_of, nodes_of, with_graph
from tests.support.tolerances import assert_close


def test_a_program_with_another_graph() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sigmoid()), torch.randn(2, 3)
    program = torch.export.export(model, (x,))
    module = copy_of(program.graph_module)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.sigmoid.default:
            node.target = torch.ops.aten.tanh.default
    made = with_graph(program, module)
    assert_close(made.module()(x).detach(), model[0](x).tanh().detach())
    assert_close(program.module()(x).detach(), model(x).detach())
    assert made.state_dict is program.state_dict


def test_a_copy_has_its_own_branches() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    given = torch.export.export(Branches(), (torch.randn(3),)).graph_module
    before = [(n.name, n.target) for n in nodes_of(given)]
    made = copy_of(given)
    assert [(n.name, n.target) for n in nodes_of(made)] == before
    for node in nodes_of(made):
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.exp.default
    assert [(n.name, n.target) for n in nodes_of(given)] == before
    assert torch.ops.aten.sin.default in [n.target for n in nodes_of(given)]
