"""A program with another graph computes what that graph does, with the weights of the first."""

from __future__ import annotations

import copy

import torch
from torch import fx

from coreai_onnx.export.functionalize.replaced_graph import with_graph
from tests.tolerances import assert_close


def test_a_program_with_another_graph() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sigmoid()), torch.randn(2, 3)
    program = torch.export.export(model, (x,))
    graph = copy.deepcopy(program.graph)
    for given, node in zip(program.graph.nodes, graph.nodes, strict=True):
        node.name = given.name
        if node.target is torch.ops.aten.sigmoid.default:
            node.target = torch.ops.aten.tanh.default
    made = with_graph(program, fx.GraphModule(program.graph_module, graph))
    assert_close(made.module()(x).detach(), model[0](x).tanh().detach())
    assert_close(program.module()(x).detach(), model(x).detach())
    assert made.state_dict is program.state_dict
