"""Operators are claimed by the ONNX nodes that they become."""

from __future__ import annotations

import torch
from torch.export import Dim, export

from coreai_onnx.delegation import CapabilityPartitioner, DelegationSpec, delegates_of, to_edge
from coreai_onnx.delegation.claims import claimed
from coreai_onnx.delegation.lowered_nodes import lowered_nodes
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
    maximum = ("ReduceMax", "IsNaN", "Cast", "Min", "Where", "ArgMax")
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
