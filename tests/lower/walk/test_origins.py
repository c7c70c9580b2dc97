"""Which values are results of which FX nodes."""

from __future__ import annotations

import torch

from coreai_onnx import TorchConverter, convert
from coreai_onnx.model.provenance.source_lines import read_inner_origins, read_origins


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        halves = torch.split(torch.nn.functional.gelu(x), 2, -1)
        return halves[0].relu(), halves[1], x


def test_every_value_is_traced_to_its_node_also_under_another_name() -> None:
    exported = torch.export.export(Named(), (torch.randn(3, 4),))
    converter = TorchConverter().add_exported_program(exported, input_names=["gelu"])
    model = converter.to_onnx().optimize().model
    values = {v.name or "" for node in model.graph for v in node.outputs} | {"gelu"}
    results = {node.name for node in exported.graph.nodes} | {"split:0", "split:1"}
    found = read_origins(model.metadata_props, values, results)
    assert found["gelu"] == "x"
    outputs = [found[v.name or ""] for v in model.graph.outputs]
    assert outputs[0] == "relu"
    assert outputs[1] in ("split:1", "getitem_1")
    assert outputs[2] == "x"
    assert "gelu" in found.values()


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() * 3, (x,))


def test_values_of_branches_are_traced_to_nodes_of_their_graphs() -> None:
    model = convert(Branches(), (torch.randn(3),)).model
    ops = {v.name or "": n.op_type for n in model.graph.all_nodes() for v in n.outputs}
    found = read_inner_origins(model.metadata_props, ops)
    assert {(ops[name], of) for name, of in found.items()} == {
        ("Sin", "true_graph_0/sin"),
        ("Mul", "true_graph_0/mul"),
        ("Cos", "false_graph_0/cos"),
        ("Mul", "false_graph_0/mul"),
    }
