"""Externalized modules that Dynamo traces: under strict, in branches and in loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_rows

from coreai_onnx import ExternalizeSpec, compare, convert
from coreai_onnx.errors import ExportError, ExternalizationError

pytestmark = pytest.mark.filterwarnings(
    "ignore:While compiling, we found certain side effects:UserWarning"
)
X = torch.linspace(-1, 2, 12).reshape(3, 4)


class Scaled(torch.nn.Module):
    """A linear layer with a buffer and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("factors", torch.arange(1.0, 5.0))
        self.shift = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factors + self.shift


class Around(torch.nn.Module):
    """Calls two modules in some form of control flow."""

    def __init__(self, flow: Any) -> None:
        super().__init__()
        self.flow = flow
        self.first, self.second = Scaled(), Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.flow(self, self.second(x))
        return result + 1


def in_branches(model: Around, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, model.first, lambda y: model.second(y) - 1, (x,))


def in_a_loop(model: Around, x: torch.Tensor) -> Any:
    start = (torch.tensor(0), x)
    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, model.first(y)), start)[1]


def in_a_map(model: Around, x: torch.Tensor) -> Any:
    # A tuple, because torch makes a list of one result where gradients are off.
    return map_rows(lambda row: (model.first(row),), x)[0]


def in_a_scan(model: Around, x: torch.Tensor) -> Any:
    def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return model.first(state) + row, state * 2

    return scan(step, torch.zeros(4), x)[1]


def in_a_row(model: Around, x: torch.Tensor) -> Any:
    return model.first(x)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("flow", [in_branches, in_a_loop, in_a_map, in_a_scan, in_a_row])
def test_modules_that_dynamo_traces_are_functions(flow: Any, strict: bool) -> None:
    model = Around(flow)
    spec = ExternalizeSpec(Scaled, "scaled", ["shift"])
    program = convert(model, (X,), strict=strict, externalize_modules=[spec])
    assert {f.name.partition(".")[0] for f in program.model.functions.values()} == {"scaled"}
    for x in (X, -X):
        compare(program, model, (x,)).assert_close()


class Counter(torch.nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


def test_a_state_of_an_externalized_module_under_strict() -> None:
    program = convert(
        torch.nn.Sequential(Counter()), (X,), strict=True, externalize_modules=[Counter]
    )
    assert "count_out" in program.model.graph.outputs[-1].name
    assert torch.equal(torch.as_tensor(program.run(X)[0]), X + 1)


class Holds(torch.nn.Module):
    """Contains control flow; an attribute is read only in it."""

    def __init__(self, flow: Any, shift: int, *, buffer: bool = False) -> None:
        super().__init__()
        self.flow, self.shift = flow, shift
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        if buffer:
            self.register_buffer("factors", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.flow(self, x)
        return result


def in_a_shifted_branch(model: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y * model.shift, lambda y: y - model.shift, (x,))


@pytest.mark.parametrize("flow", [in_branches, in_a_shifted_branch, in_a_loop, in_a_map, in_a_scan])
def test_modules_that_contain_control_flow(flow: Any) -> None:
    model = torch.nn.Sequential(*(Holds(flow, shift) for shift in (2, 3)))
    program = convert(model, (X,), externalize_modules=[Holds])
    for x in (X, -X):
        compare(program, model, (x,)).assert_close()


def test_what_dynamo_cannot_trace_is_refused_in_two_lines() -> None:
    before = torch.nn.Module.__getattribute__, torch.compile
    model = torch.nn.Sequential(*(Holds(in_branches, shift, buffer=True) for shift in (2, 3)))
    with pytest.raises((ExportError, ExternalizationError), match="torch cannot trace") as raised:
        convert(model, (X,), externalize_modules=[Holds])
    assert len(str(raised.value).splitlines()) == 2
    assert before == (torch.nn.Module.__getattribute__, torch.compile)
