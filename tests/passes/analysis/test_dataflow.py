"""The traversal of analyses, on one that finds the number of nodes before a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coreai_onnx.passes.analysis.dataflow import ForwardAnalysis
from coreai_onnx.passes.engine import graphs as gs


class Depth(ForwardAnalysis[int]):
    def __init__(self) -> None:
        super().__init__()
        self.visited = 0

    def of_constant(self, constant: gs.Constant) -> int | None:
        return 0

    def operands(self, node: gs.Node) -> Sequence[gs.Tensor] | None:
        return list(node.inputs) if node.op in ("Identity", "Add") else None

    def transfer(self, node: gs.Node, known: list[int | None]) -> int | None:
        self.visited += 1
        return None if None in known else 1 + max(one or 0 for one in known)


def constant(value: int = 1) -> gs.Constant:
    return gs.Constant("c", np.full(2, value))


def result(op: str, *inputs: gs.Tensor, domain: str | None = None) -> gs.Variable:
    output = gs.Variable(f"{op}_{len(inputs)}")
    gs.Node(op, inputs=list(inputs), outputs=[output], domain=domain)
    return output


def test_facts_follow_from_those_of_the_operands() -> None:
    analysis = Depth()
    two = result("Add", result("Identity", constant()), constant())
    assert analysis.of(two) == 2
    assert analysis.of(result("Add", two, gs.Variable("input"))) is None
    assert analysis.of(result("Neg", constant())) is None
    assert analysis.of(result("Identity", constant(), domain="ai.coreai.user")) is None
    assert analysis.of(gs.Variable.empty()) is None


def test_a_fact_is_derived_once() -> None:
    analysis, tensor = Depth(), constant()
    for _ in range(30):  # a tree of 2 ** 30 paths
        tensor = result("Add", tensor, tensor)
    assert (analysis.of(tensor), analysis.visited) == (30, 30)
    assert (analysis.of(tensor), analysis.visited) == (30, 30)


def test_a_long_chain_needs_no_recursion() -> None:
    tensor = constant()
    for _ in range(3000):
        tensor = result("Identity", tensor)
    assert Depth().of(tensor) == 3000


class Values(ForwardAnalysis[int]):
    def of_constant(self, constant: gs.Constant) -> int | None:
        return int(constant.values[0])

    def operands(self, node: gs.Node) -> Sequence[gs.Tensor] | None:
        return None

    def transfer(self, node: gs.Node, known: list[int | None]) -> int | None:
        raise NotImplementedError


def test_a_fact_is_not_that_of_a_tensor_made_later() -> None:
    analysis = Values()
    for index in range(50):  # each may get the id of the one before
        assert analysis.of(constant(index)) == index
