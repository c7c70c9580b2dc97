"""Tests of the order of nodes that takes the least memory, as measured."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx import convert
from coreai_onnx.errors import InputError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.memory import reorder
from coreai_onnx.runtime.memory.reordering import apply_order, smaller_first
from tests.support.small_models import parse
from tests.support.tolerances import assert_close


class Branches(torch.nn.Module):
    """The branch that is large in between has the small result, and comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.big, self.small = (
            torch.nn.Linear(16, 4096), torch.nn.Linear(16, 8192), torch.nn.Linear(8192, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.small(torch.sin(self.big(x)))
        return torch.cos(self.up(x)) * small


@pytest.fixture
def program() -> OnnxProgram:
    return convert(Branches().eval(), (torch.randn(4, 16),))


def test_a_lower_peak_is_kept(program: OnnxProgram) -> None:
    x = np.ones((4, 16), np.float32)
    expected = program.run(x, kernels=False)
    before, after = reorder(program, kernels=False)
    assert after.peak == after.peak_used < before.peak == before.peak_used
    assert sorted(after.nodes) == sorted(before.nodes)
    for name, value in program.run(x, kernels=False).items():
        assert_close(value, expected[name])


def test_the_order_stays_if_no_other_is_better(program: OnnxProgram) -> None:
    reorder(program, kernels=False)
    present = list(program.model.graph)
    before, after = reorder(program, kernels=False)
    assert after is before
    assert list(program.model.graph) == present


def test_a_failure_changes_nothing(program: OnnxProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    present = list(program.model.graph)
    with pytest.raises(InputError):
        reorder(program, [np.ones(3, np.float32)])
    broken = [*reversed(present)]
    monkeypatch.setattr("coreai_onnx.runtime.memory.reordering.smaller_first", lambda *_: broken)
    monkeypatch.setattr(
        "coreai_onnx.runtime.memory.reordering.memory_plan", _then_fail(program, present)
    )
    with pytest.raises(RuntimeError, match="stopped"):
        reorder(program)
    assert list(program.model.graph) == present


def _then_fail(program: OnnxProgram, present: list[object]) -> object:
    def run(*_: object, **__: object) -> object:
        if list(program.model.graph) != present:
            raise RuntimeError("stopped")
        return SimpleNamespace(results={})

    return run


def branches() -> ir.Model:
    """A large result, and a small one of a branch that is larger in between."""
    return parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[1] x) => (float[100] y) {
        large = Exp(x)
        larger = Sin(x)
        small = Cos(larger)
        y = Mul(large, small)
    }""")


def names(nodes: list[ir.Node]) -> list[str]:
    return [node.outputs[0].name or "" for node in nodes]


SIZES = {"large": 100, "larger": 101, "small": 1, "y": 100}


def test_the_branch_with_the_small_result_is_first() -> None:
    graph = branches().graph
    sizes = SIZES | {"larger": 90}
    assert names(smaller_first(graph, sizes)) == ["larger", "small", "large", "y"]


def test_ties_keep_their_order() -> None:
    graph = branches().graph
    assert names(smaller_first(graph, {})) == names(list(graph))


def test_branches_of_an_if_are_read_by_it() -> None:
    graph = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (bool go, float[1] x) => (float[1] y) {
        a = Exp(x)
        b = Sin(x)
        y = If(go) <then_branch = yes () => (float[1] t) { t = Neg(a) },
                    else_branch = no () => (float[1] e) { e = Neg(b) }>
    }""").graph
    order = smaller_first(graph, {"a": 8, "b": 4, "y": 4})
    assert names(order) == ["b", "a", "y"]
    apply_order(graph, order)
    assert names(list(graph)) == ["b", "a", "y"]
