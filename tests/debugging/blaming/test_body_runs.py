"""The wrong nodes in branches and in the bodies of loops."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_

import coreai_onnx
from coreai_onnx.debugging.blaming.blame import Blame, blame
from coreai_onnx.program import OnnxProgram
from tests.debugging.blaming.test_inner_search import other_op

X = torch.linspace(-1, 2, 12).reshape(3, 4)


class Flow(torch.nn.Module):
    """Control flow of one kind, after and before operators of the main graph."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.kind = torch.nn.Linear(4, 4), torch.nn.RMSNorm(4), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.kind)(x * 1.5) + 1

    def cond(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.tanh(self.layer(x)), torch.sin, (x,))

    def loop(self, x: torch.Tensor) -> torch.Tensor:
        def step(i: Any, y: torch.Tensor) -> Any:
            return i + 1, torch.tanh(self.layer(y)) + torch.relu(3.1 - y) * x

        return while_loop(lambda i, y: i < 4, step, (torch.tensor(0), x))[1]

    def scan(self, x: torch.Tensor) -> torch.Tensor:
        def step(c: torch.Tensor, row: torch.Tensor) -> Any:
            c = torch.tanh(c + row)
            return c, torch.sin(c) * 2

        return scan(step, x[0] * 0, x, dim=0)[1]

    def map(self, x: torch.Tensor) -> torch.Tensor:
        return map_(lambda row: torch.tanh(self.norm(row)), x)

    def nested(self, x: torch.Tensor) -> torch.Tensor:
        def inner(i: Any, y: torch.Tensor) -> Any:
            return i + 1, torch.cond(
                i > 0, lambda y, x: torch.tanh(y) * x[0], lambda y, x: torch.sin(y + x[0]), (y, x)
            )

        def step(c: torch.Tensor, row: torch.Tensor) -> Any:
            c = while_loop(lambda i, y: i < 3, inner, (torch.tensor(0), c + row))[1]
            return c, c * 2

        return scan(step, x[0] * 0, x, dim=0)[1]


def converted(kind: str, *, optimize: bool = False) -> OnnxProgram:
    return coreai_onnx.convert(Flow(kind).eval(), (X,), optimize=optimize)


def inner_node(program: OnnxProgram, op: str) -> ir.Node:
    nodes = [n for n in program.model.graph.all_nodes() if n.graph is not program.model.graph]
    (found,) = [node for node in nodes if node.op_type == op]
    return found


def blamed(program: OnnxProgram, op: str) -> Blame:
    """Blame a program in which a node in a body computes a cosine."""
    node = inner_node(program, op)
    other_op("Cos")(node)
    found = blame(program, kernels=False)
    (finding,) = found.findings
    assert [(one.op, one.name) for one in finding.inside] == [("Cos", node.name)]
    assert finding.lines == tuple(dict.fromkeys(n.where.source for n in finding.inside))
    assert finding.kind == "graph"
    return found


@pytest.mark.parametrize("kind", ["cond", "loop", "scan", "map", "nested"])
@pytest.mark.parametrize("optimize", [False, True])
def test_a_right_program_is_clean(kind: str, optimize: bool) -> None:
    assert blame(converted(kind, optimize=optimize)).clean


@pytest.mark.parametrize(
    ("kind", "op", "outer", "steps"),
    [
        ("cond", "Tanh", "If", ()),
        ("loop", "Tanh", "Loop", (0,)),
        ("scan", "Tanh", "Scan", (0,)),
        ("scan", "Sin", "Scan", (0,)),
        ("map", "Tanh", "Scan", (0,)),
        ("nested", "Sin", "Scan", (0, 0)),
        ("nested", "Tanh", "Scan", (0, 1)),
    ],
)
@pytest.mark.parametrize("optimize", [False, True])
def test_the_wrong_node_in_a_body_is_named(
    kind: str, op: str, outer: str, steps: tuple[int, ...], optimize: bool
) -> None:
    found = blamed(converted(kind, optimize=optimize), op)
    (finding,) = found.findings
    assert [node.op for node in finding.nodes] == [outer]
    assert finding.steps == steps
    marks = "".join(f" [{step}]" for step in steps)
    assert f"→ Cos {finding.inside[0].name}{marks}" in str(found)


def test_the_step_is_the_first_in_which_a_node_is_wrong() -> None:
    program = converted("loop")
    other_op("Abs")(inner_node(program, "Relu"))  # the same until a number is negative
    (finding,) = blame(program, kernels=False).findings
    assert [one.op for one in finding.inside] == ["Abs"]
    assert finding.steps == (2,)


def test_a_branch_that_does_not_run_is_not_compared() -> None:
    program = converted("cond")
    other_op("Cos")(inner_node(program, "Sin"))
    assert blame(program, inputs=(X,), kernels=False).clean
    (finding,) = blame(program, inputs=[(X,), (-X,)], kernels=False).findings
    assert finding.call == 1
    assert [one.op for one in finding.inside] == ["Cos"]


def test_the_condition_of_a_loop_is_compared() -> None:
    program = converted("loop")
    other_op("LessOrEqual")(inner_node(program, "Less"))
    (finding,) = blame(program, kernels=False).findings
    assert [one.op for one in finding.inside] == ["LessOrEqual"]
    assert finding.steps == (3,)


def test_functions_in_bodies_are_searched() -> None:
    program = converted("map")
    (norm,) = [f for f in program.model.functions.values() if f.name == "rms_norm"]
    node = next(iter(norm))
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.5)
    (finding,) = blame(program, kernels=False).findings
    assert finding.kind == "body"
    assert [one.op for one in finding.inside] == [node.op_type]
    assert finding.steps == (0,)
