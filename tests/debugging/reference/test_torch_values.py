"""Results of exported programs, also in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from coreai_onnx.debugging.reference.torch_values import (
    TorchValues,
    as_stored,
    leaves_of,
    results_of,
    torch_values,
)
from coreai_onnx.errors import ComparisonError
from tests.support.tolerances import assert_close


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6).half()

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        first, second = self.linear(x).split(3, -1)
        return (first.to(torch.float32) * second).half() * scale


X, SCALE = torch.randn(4, 6, dtype=torch.float16), torch.tensor(2.0, dtype=torch.float16)


def values_of(program: ExportedProgram, args: Any, kwargs: Any, anchors: Any = None) -> TorchValues:
    return torch_values(program, leaves_of(program, args, kwargs), anchors)


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Mixed(), (X,), {"scale": SCALE})


def test_every_result_has_torch_s_value_and_a_better_one() -> None:
    program = exported()
    found = values_of(program, (X,), {"scale": SCALE}, ())
    names = {name for name, node in results_of(program) if node.op == "call_function"}
    assert names <= found.results.keys()
    assert names <= found.ideal.keys()
    assert all(found.ideal[n].dtype == torch.float64 for n in names)
    (output,) = found.outputs
    assert_close(found.results[output], program.module()(X, scale=SCALE))
    wide = program.module().double()
    weight, bias = wide.linear.weight, wide.linear.bias
    first, second = (X.double() @ weight.T + bias).split(3, -1)
    assert_close(found.ideal[output], first * second * 2)


def test_anchors_start_again_from_torch_s_own_results() -> None:
    program = exported()
    alone = values_of(program, (X,), {"scale": SCALE})
    (output,) = alone.outputs
    last = next(n for n in program.graph.nodes if n.name == output)
    before = alone.results[last.args[0].name]
    assert_close(alone.ideal[output], before.double() * 2)


def test_dropout_is_random_only_in_training() -> None:
    def names(p: float) -> set[str]:
        module = torch.nn.Sequential(torch.nn.Dropout(p), torch.nn.Linear(6, 6))
        program = torch.export.export(module, (X.float(),))
        return values_of(program, (X.float(),), {}).undetermined

    assert "dropout" in names(0.5)
    assert "linear" not in names(0.5)


def test_what_the_program_does_not_take() -> None:
    program = exported()
    with pytest.raises(ComparisonError, match="keyword arguments scale, got none"):
        values_of(program, (X,), {})
    with pytest.raises(ComparisonError, match="more inputs"):
        values_of(program, (), {"scale": SCALE})
    with pytest.raises(ComparisonError, match="cannot be run"):
        values_of(program, (X[:, :5],), {"scale": SCALE})


def test_complex_results_are_stored_as_pairs() -> None:
    assert_close(as_stored(torch.tensor([1 + 2j])), torch.tensor([[1.0, 2.0]]))


class Order(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = x.sort(-1)
        return values, places, torch.empty_like(x).fill_(1.0), x.topk(2, -1)[1]


@pytest.mark.parametrize(
    ("row", "undetermined"), [([3.0, 1.0, 2.0], False), ([1.0, 1.0, 2.0], True)]
)
def test_the_order_of_equal_elements_is_not_determined(
    row: list[float], undetermined: bool
) -> None:
    x = torch.tensor([row])
    found = values_of(torch.export.export(Order(), (x,)), (x,), {})
    assert ("sort:1" in found.undetermined) is undetermined
    assert ("topk:1" in found.undetermined) is undetermined
    assert "sort:0" not in found.undetermined
    assert "empty_like" in found.undetermined
