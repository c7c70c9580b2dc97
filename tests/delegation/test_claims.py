"""Operators are claimed by the ONNX nodes that they become."""

from __future__ import annotations

import torch
from torch.export import Dim, export

from coreai_onnx.delegation import CapabilityPartitioner, DelegationSpec, delegates_of, to_edge
from coreai_onnx.delegation.claims import claimed, lowered_nodes
from coreai_onnx.delegation.partitioning import Partitioner
from tests.delegation.demo_backend import DEMO
from tests.support.tolerances import assert_close

aten = torch.ops.aten


class Claims(Partitioner):
    """Claims ONNX operators by name."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def partition(self, exported_program):
        def claim(node, nodes):
            others = [n.op_type for n in nodes if n.op_type not in self.names]
            return f"demo has no {', '.join(others)}" if others else ""

        lowered = lowered_nodes(exported_program, composites=False)
        return claimed(exported_program, lowered, DelegationSpec(DEMO), claim)


class Model(torch.nn.Module):
    def forward(self, x):
        values, indices = (x.sin() * 2).max(1)
        return values.cos(), indices, x.expand(x.shape) + x.shape[0]


X = torch.randn(3, 4)


def edge():
    return to_edge(export(Model(), (X,), dynamic_shapes=({0: Dim("rows")},)))


def test_reasons_and_parts() -> None:
    result = Claims("Sin", "Mul").partition(edge().exported_program())
    assert result.unsupported["cos"] == "demo has no Cos"
    assert result.unsupported["getitem"] == result.unsupported["max_1"]
    (number,) = (why for name, why in result.unsupported.items() if name.startswith("sym_size"))
    assert number == "its result is not a tensor"
    assert "sin" not in result.unsupported
    assert len(result.partition_tags) == 1


def test_an_operator_of_several_results_is_claimed_with_them() -> None:
    maximum = ("ReduceMax", "IsNaN", "Equal", "Cast", "Where", "ArgMax")
    everything = ("Sin", "Mul", *maximum, "Cos")
    made = edge().to_backend(Claims(*everything))
    (part,) = delegates_of(made.exported_program())
    assert b"aten.max.dim#" in part.processed_bytes
    assert b"#aten.cos" in part.processed_bytes
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        for found, expected in zip(made.finish().run(x), Model()(x), strict=True):
            assert_close(found, expected)


def test_operators_without_nodes_are_no_part() -> None:
    assert not Claims().partition(edge().exported_program()).partition_tags


def test_what_is_delegated_already_stays_there() -> None:
    def only_sin(node):
        return "" if node.target is aten.sin.default else "not sin"

    first = edge().to_backend(CapabilityPartitioner(DelegationSpec(DEMO), only_sin))
    result = Claims("Mul").partition(first.exported_program())
    reasons = {n: why for n, why in result.unsupported.items() if "delegated" in why}
    assert set(reasons) == {"delegate_default", "getitem_2"}
    made = first.to_backend(Claims("Mul"))
    assert len(delegates_of(made.exported_program())) == 2
    assert_close(made.finish().run(X)[0], Model()(X)[0])


# ---------------------------------------------------------------------- the ONNX nodes
class Normed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x).sin().reshape(x.shape[0] * 2, 2).clone()


def onnx_nodes(*, composites: bool) -> dict[str, list[str]]:
    exported = export(Normed(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("rows")},))
    program = to_edge(exported).exported_program()
    before = str(program.graph)
    lowered = lowered_nodes(program, composites=composites)
    assert str(program.graph) == before
    assert sum(map(len, lowered.nodes.values())) == len(lowered.model.graph)
    return {name: [n.op_type for n in nodes] for name, nodes in lowered.nodes.items()}


def test_nodes_with_and_without_composites() -> None:
    assert onnx_nodes(composites=True)["layer_norm"] == ["layer_norm"]
    primitive = onnx_nodes(composites=False)
    assert primitive["layer_norm"] == ["LayerNormalization"]
    assert primitive["sin"] == ["Sin"]


def test_a_number_becomes_no_node() -> None:
    (number,) = (nodes for name, nodes in onnx_nodes(composites=True).items() if "sym_size" in name)
    assert not number


def test_nodes_are_in_order() -> None:
    class Softsign(torch.nn.Module):
        def forward(self, x):
            return torch.ops.aten.frac(x)

    program = to_edge(export(Softsign(), (torch.randn(3),))).exported_program()
    lowered = lowered_nodes(program, composites=False)
    assert [n for nodes in lowered.nodes.values() for n in nodes] == list(lowered.model.graph)
