"""In-place ops become plain ones where nothing else sees the change, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import ExportedProgram

from coreai_onnx import TorchConverter
from coreai_onnx.export.in_place import without_in_place
from tests.tolerances import assert_close

aten = torch.ops.aten
Function = Callable[[torch.Tensor], torch.Tensor]


class Call(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def exported(function: Function, x: torch.Tensor) -> ExportedProgram:
    return torch.export.export(Call(function), (x,))


def mutations(program: ExportedProgram) -> int:
    nodes = [n for n in program.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    return sum(n.target._schema.is_mutable for n in nodes)


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    before = y * 2
    y += x
    y.mul_(3)
    return before + y


def row_of_topk(x: torch.Tensor) -> torch.Tensor:
    values, indices = torch.topk(x, 2)
    values /= values.sum(-1, keepdim=True)
    return values * indices


def written_by_index(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[torch.tensor([2, 0])] = x[:2]
    return y * 2


def seen_through_a_later_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y += 1
    return y.transpose(0, 1) + 1


@pytest.mark.parametrize(
    "function", [chain, row_of_topk, written_by_index, seen_through_a_later_view]
)
def test_a_tensor_of_ones_own_is_made_anew(function: Function) -> None:
    x = torch.randn(3, 4)
    program = exported(function, x)
    given = mutations(program)
    plain = without_in_place(program)
    assert given > 0
    assert mutations(plain) == 0
    assert mutations(program) == given
    assert_close(plain.module()(x), function(x))
    (actual,) = TorchConverter().add_exported_program(program).to_onnx().run(x)
    assert_close(actual, function(x))


def input_itself(x: torch.Tensor) -> torch.Tensor:
    x += 1
    return x * 2


def seen_through_an_earlier_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    row = y[0]
    y += 1
    return row * 1 + y.sum()


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[0] += 1
    return y * 1


def dropout_is_the_identity(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.dropout(x, training=False)
    y += 1
    return y + x


@pytest.mark.parametrize("function", [input_itself, seen_through_an_earlier_view, through_a_view])
def test_shared_memory_is_left_to_torch(function: Function) -> None:
    x = torch.randn(3, 4)
    program = exported(function, x)
    assert mutations(without_in_place(program)) > 0
    actual = TorchConverter().add_exported_program(program).to_onnx().run(x=x)
    assert_close(actual[0], function(x.clone()))


def test_an_op_that_may_return_its_argument_is_left_to_torch() -> None:
    program = exported(dropout_is_the_identity, torch.randn(3, 4))
    assert without_in_place(program) is program


def test_a_narrower_tensor_keeps_its_dtype() -> None:
    def add_wide(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y += torch.ones(3, 4, dtype=torch.float64)
        return y * 1

    x = torch.randn(3, 4)
    program = exported(add_wide, x)
    assert mutations(without_in_place(program)) == 1
    (actual,) = TorchConverter().add_exported_program(program).to_onnx().run(x)
    assert_close(actual, add_wide(x))


def test_a_pure_program_is_returned_as_it_is() -> None:
    program = exported(torch.sin, torch.randn(2))
    assert without_in_place(program) is program
