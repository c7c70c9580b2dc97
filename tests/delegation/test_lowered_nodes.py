"""Every node of a program with the ONNX nodes that it is lowered to."""

from __future__ import annotations

import torch
from torch.export import Dim, export

from coreai_onnx.delegation import to_edge
from coreai_onnx.delegation.lowered_nodes import lowered_nodes


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x).sin().reshape(x.shape[0] * 2, 2).clone()


def made(*, composites: bool) -> dict[str, list[str]]:
    exported = export(Model(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("rows")},))
    program = to_edge(exported).exported_program()
    before = str(program.graph)
    found = lowered_nodes(program, composites=composites)
    assert str(program.graph) == before
    assert sum(map(len, found.nodes.values())) == len(found.model.graph)
    return {name: [n.op_type for n in nodes] for name, nodes in found.nodes.items()}


def test_nodes_with_and_without_composites() -> None:
    assert made(composites=True)["layer_norm"] == ["layer_norm"]
    primitive = made(composites=False)
    assert primitive["layer_norm"] == ["LayerNormalization"]
    assert primitive["sin"] == ["Sin"]


def test_a_number_becomes_no_node() -> None:
    (number,) = (nodes for name, nodes in made(composites=True).items() if "sym_size" in name)
    assert not number


def test_nodes_are_in_order() -> None:
    class Softsign(torch.nn.Module):
        def forward(self, x):
            return torch.ops.aten.frac(x)

    program = to_edge(export(Softsign(), (torch.randn(3),))).exported_program()
    found = lowered_nodes(program, composites=False)
    assert [n for nodes in found.nodes.values() for n in nodes] == list(found.model.graph)
