"""The wrong nodes inside of functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.debugging.blaming.blame import blame
from coreai_onnx.debugging.blaming.inner_search import opened_call
from coreai_onnx.debugging.blaming.regions_run import run_all
from coreai_onnx.debugging.reference.regions import CutGraph
from coreai_onnx.program import OnnxProgram
from tests.debugging.small_reference import Small
from tests.support.composite_cases import CASES
from tests.support.execution_providers import WITHOUT_ARENA, count_without_arena
from tests.support.tolerances import as_numpy, assert_close


class Attends(torch.nn.Module):
    """Rotary attention, a norm and a gate: composites with several nodes in their bodies."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = torch.nn.RMSNorm(8), torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.norm(x).unflatten(-1, (2, 4)).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, scale=0.7)
        gate, up = self.up(mixed.transpose(1, 2).flatten(2)).chunk(2, -1)
        return torch.nn.functional.gelu(gate, approximate="tanh") * up


def converted(opset: int = 18) -> OnnxProgram:
    torch.manual_seed(2)
    return coreai_onnx.convert(Attends().eval(), (torch.randn(2, 5, 8),), opset_version=opset)


def body_node(program: OnnxProgram, composite: str, op: str) -> ir.Node:
    functions = program.model.functions.values()
    function = next(f for f in functions if f.name.partition(".")[0] == composite)
    return next(node for node in function if node.op_type == op)


def other_op(op: str) -> Callable[[ir.Node], None]:
    def change(node: ir.Node) -> None:
        node.op_type = op
        node.attributes.clear()

    return change


def other_axis(node: ir.Node) -> None:
    node.attributes["axis"] = ir.AttrInt64("axis", -2)


@pytest.mark.parametrize(
    ("composite", "op", "change"),
    [
        ("rms_norm", "Sqrt", other_op("Abs")),
        ("rms_norm", "Div", other_op("Mul")),
        ("scaled_dot_product_attention", "Softmax", other_axis),
        ("scaled_dot_product_attention", "Transpose", other_op("Identity")),
        ("geglu", "Tanh", other_op("Sin")),
    ],
)
def test_the_wrong_node_of_a_composites_body_is_named(
    composite: str, op: str, change: Callable[[ir.Node], None]
) -> None:
    program = converted()
    assert blame(program, kernels=False).clean
    node = body_node(program, composite, op)
    change(node)
    found = blame(program, kernels=False)
    (finding,) = found.findings
    assert finding.kind == "body"
    assert [one.name for one in finding.inside] == [node.name]
    assert f"→ {node.op_type} {node.name}" in str(found)
    assert len(finding.lines) == 1


def test_wrong_attributes_and_inputs_of_a_call_are_not_its_body() -> None:
    program = converted()
    call = next(n for n in program.model.graph if n.op_type.startswith("scaled_dot"))
    call.attributes["scale"] = ir.AttrFloat32("scale", 2.0)
    (finding,) = blame(program, kernels=False).findings
    assert (finding.kind, finding.inside) == ("graph", ())


class Twice(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = Small(), Small(), torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) + self.other(x).exp()).tanh()


@pytest.mark.parametrize("op", ["Add", "Tanh", "Softmax"])
def test_the_wrong_node_of_an_externalized_module_is_named(op: str) -> None:
    module, x = Twice().eval(), torch.randn(3, 8)
    program = coreai_onnx.convert(module, (x,), externalize_modules=[Small])
    function = next(f for f in program.model.functions.values() if f.name == "Small")
    node = next(n for n in function if n.op_type == op)
    node.op_type = {"Add": "Sub", "Tanh": "Sigmoid", "Softmax": "Identity"}[op]
    node.attributes.clear()
    findings = blame(program, kernels=False).findings
    assert {one.nodes[0].op for one in findings} == {"ai.coreai.module::Small"}
    for finding in findings:
        (inside,) = finding.inside
        assert inside.name == node.name
        assert inside.where.code in (
            "hidden = torch.tanh(hidden) + x",
            "return self.second(hidden).softmax(-1)",
        )


def test_composites_in_externalized_modules_are_searched() -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attends()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + x

    module, x = Outer().eval(), torch.randn(2, 5, 8)
    program = coreai_onnx.convert(module, (x,), externalize_modules=[Attends], opset_version=18)
    node = body_node(program, "scaled_dot_product_attention", "Softmax")
    other_axis(node)
    (finding,) = blame(program, kernels=False).findings
    assert finding.nodes[0].op == "ai.coreai.module::Attends"
    assert [one.name for one in finding.inside] == [node.name]


@pytest.mark.parametrize("case", [c for c in CASES if 0 not in c.shapes[0]][::9], ids=str)
def test_an_opened_call_computes_what_the_call_does(case: object) -> None:
    assert hasattr(case, "model")
    model = case.model(torch.float32, dynamic=False)
    inputs = case.inputs(torch.float32)
    arrays = [None if x is None else as_numpy(x) for x in inputs]
    (node,) = model.graph
    (function,) = model.functions.values()
    opened = opened_call(model, node, function, arrays)
    assert not any(a.is_ref() for n in opened.graph.all_nodes() for a in n.attributes.values())
    names = [value.name or "" for value in opened.graph.inputs]
    fed = dict(zip(names, (x for x in arrays if x is not None), strict=True))
    found = run_all(CutGraph(opened, ()), fed, (), kernels=False)
    first = found[opened.graph.outputs[0].name or ""]
    assert isinstance(first, np.ndarray)
    assert_close(torch.from_numpy(first), case.expected(inputs))


def test_the_inside_of_a_body_runs_on_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    program = converted()
    other_op("Abs")(body_node(program, "rms_norm", "Sqrt"))
    opened = count_without_arena(monkeypatch)
    (finding,) = blame(program, kernels=False, provider=WITHOUT_ARENA).findings
    assert [node.op for node in finding.inside] == ["Abs"]
    assert len(opened) == 2
