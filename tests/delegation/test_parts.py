"""Parts of programs, as programs of their own."""

from __future__ import annotations

import torch
from torch.export import Dim, export
from torch.export.graph_signature import InputKind

from coreai_onnx.delegation import to_edge
from coreai_onnx.delegation.parts import part_of
from tests.support.tolerances import assert_close

aten = torch.ops.aten


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 5)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x):
        y = self.first(x).relu()
        return self.second(y) * self.scale, y


def part(*wanted: object):
    exported = export(Layers(), (torch.randn(2, 3),), dynamic_shapes=({0: Dim("rows")},))
    program = to_edge(exported).exported_program()
    nodes = [n for n in program.graph.nodes if n.target in wanted]
    return program, part_of(program, program.graph_module, nodes)


def test_a_part_has_its_own_weights_and_the_inputs_it_reads() -> None:
    program, made = part(aten.relu.default, aten.linear.default, aten.mul.Tensor)
    kinds = [spec.kind for spec in made.program.graph_signature.input_specs]
    assert kinds == [InputKind.PARAMETER] * 4 + [InputKind.BUFFER, InputKind.USER_INPUT]
    assert made.program.state_dict.keys() == program.state_dict.keys()
    assert list(made.program.constants) == ["scale"]
    x = torch.randn(5, 3)
    expected, found = program.module()(x), made.program.module()(x)
    assert [n.target for n in made.outputs] == [aten.relu.default, aten.mul.Tensor]
    for one, other in zip(found, reversed(expected), strict=True):
        assert_close(one.detach(), other.detach())


def test_values_inside_the_program_are_inputs() -> None:
    program, made = part(aten.mul.Tensor)
    assert [n.name for n in made.inputs] == ["b_scale", "linear_1"]
    assert not made.program.state_dict
    (y,) = made.program.module()(torch.ones(7, 5))
    assert_close(y, torch.full((7, 5), 2.0))
    assert [n.name for n in program.graph.nodes if n.op == "placeholder"][-1] == "x"
