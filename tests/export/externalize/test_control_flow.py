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


class Within(torch.nn.Module):
    """Calls a counter in contexts, which torch exports as graphs of their own."""

    def __init__(self, gradients: bool, cast: bool) -> None:
        super().__init__()
        self.counter, self.gradients, self.cast = Counter(), gradients, cast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with (
            torch.set_grad_enabled(self.gradients),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.cast),
        ):
            result: torch.Tensor = self.counter(x)
        return result


@pytest.mark.parametrize(
    "model", [torch.nn.Sequential(Counter()), Within(True, True), Within(False, True)]
)
def test_a_state_of_an_externalized_module_under_strict(model: torch.nn.Module) -> None:
    program = convert(model, (X,), strict=True, externalize_modules=[Counter])
    assert "count_out" in program.model.graph.outputs[-1].name
    session = program.session()
    for count in (1, 2):
        assert torch.equal(torch.as_tensor(session.run(X)[0]), X + count)


class Holds(torch.nn.Module):
    """Contains control flow; an attribute and a buffer are read only in it."""

    def __init__(self, flow: Any, shift: int, *, buffer: bool = False) -> None:
        super().__init__()
        self.flow, self.shift = flow, shift
        self.first, self.second = torch.nn.Linear(4, 4), Scaled() if buffer else torch.nn.Tanh()
        if buffer:
            self.register_buffer("factors", torch.arange(1.0, 5.0) * shift)

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


def agree(model: torch.nn.Module, targets: list[type], dynamic: bool, strict: bool) -> Any:
    """Hold the functions of a model to torch, for other values and sizes too."""
    shapes = ({0: "rows"},) if dynamic else None
    program = convert(
        model, (X,), dynamic_shapes=shapes, strict=strict, externalize_modules=targets
    )
    for x in (X, -X, *([torch.cat([X, X + 0.3])] if dynamic else [])):
        compare(program, model, (x,)).assert_close()
    return program


def in_scaled_branches(model: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y * model.factors, model.second, (x,))


def in_a_scaled_loop(model: Any, x: torch.Tensor) -> Any:
    start = (torch.tensor(0), x)
    step = lambda i, y: (i + 1, model.second(y).tanh() * model.factors)  # noqa: E731
    return while_loop(lambda i, _: i < 3, step, start)[1]


def in_a_scaled_map(model: Any, x: torch.Tensor) -> Any:
    return map_rows(lambda row: (model.second(row) * model.factors,), x)[0]


def in_a_scaled_scan(model: Any, x: torch.Tensor) -> Any:
    def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return model.second(state).tanh() * model.factors + row, state * 2

    return scan(step, torch.zeros(4), x)[1]


SCALED = [in_scaled_branches, in_a_scaled_loop, in_a_scaled_map, in_a_scaled_scan]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("flow", SCALED)
def test_modules_with_buffers_that_contain_control_flow(
    flow: Any, dynamic: bool, strict: bool
) -> None:
    model = torch.nn.Sequential(*(Holds(flow, shift, buffer=True) for shift in (2, 3)))
    program = agree(model, [Holds, Scaled], dynamic, strict)
    assert {f.name.partition(".")[0] for f in program.model.functions.values()} >= {
        "Holds",
        "Scaled",
    }


class CountsAround(torch.nn.Module):
    """Changes a buffer before control flow that reads it, and after it."""

    def __init__(self, flow: Any, start: int) -> None:
        super().__init__()
        self.flow, self.second = flow, torch.nn.Tanh()
        self.register_buffer("factors", torch.full((4,), float(start)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.factors.add_(1)
        result: torch.Tensor = self.flow(self, x)
        self.factors.mul_(0.5)
        return result + self.factors


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("flow", SCALED)
def test_buffers_that_change_around_control_flow(flow: Any, strict: bool) -> None:
    model = torch.nn.Sequential(*(CountsAround(flow, start) for start in (1, 2)))
    program = agree(model, [CountsAround], True, strict)
    assert sum("factors_out" in str(each.name) for each in program.model.graph.outputs) == 2


class InBranches(torch.nn.Module):
    """Calls a module that contains control flow in both branches of a ``cond``."""

    def __init__(self, flow: Any, shift: int) -> None:
        super().__init__()
        self.inner = Holds(flow, shift, buffer=True)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, self.inner, lambda y: self.inner(y) * 2, (x,))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("flow", SCALED)
def test_control_flow_of_a_module_inside_a_branch(flow: Any, strict: bool) -> None:
    model = torch.nn.Sequential(*(InBranches(flow, shift) for shift in (2, 3)))
    agree(model, [Holds, Scaled, InBranches], True, strict)
    agree(model, [Holds], False, strict)


def in_a_counted_map(model: Any, x: torch.Tensor) -> Any:
    return map_rows(lambda row: (model.counter(row),), x)[0]


def in_a_counted_loop(model: Any, x: torch.Tensor) -> Any:
    start = (torch.tensor(0), x)
    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, model.counter(y)), start)[1]


def in_counted_branches(model: Any, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, model.counter, torch.tanh, (x,))


class Counts(torch.nn.Module):
    """Contains control flow around a module that changes its buffer."""

    def __init__(self, flow: Any) -> None:
        super().__init__()
        self.flow, self.counter = flow, Counter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.flow(self, x)
        return result


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("flow", [in_counted_branches, in_a_counted_loop, in_a_counted_map])
@pytest.mark.parametrize("targets", [[Counter], [Counts], [Counter, Counts], []])
def test_changes_of_a_buffer_inside_control_flow_are_refused(
    targets: list[type], flow: Any, strict: bool
) -> None:
    before = torch.nn.Module.__getattribute__, torch.compile
    with pytest.raises((ExportError, ExternalizationError)) as raised:
        convert(torch.nn.Sequential(Counts(flow)), (X,), externalize_modules=targets, strict=strict)
    first, second = str(raised.value).splitlines()
    assert first.endswith("in place, which torch.export does not follow")
    assert second.startswith("  return the new value from the branch")
    assert before == (torch.nn.Module.__getattribute__, torch.compile)


def test_torch_exports_control_flow_after_a_comparison() -> None:
    model = torch.nn.Sequential(Holds(in_a_shifted_branch, 2))
    program = convert(model, (X,))
    compare(program, model, (X,)).assert_close()
    torch.export.export(torch.nn.Sequential(Holds(in_a_shifted_branch, 3)), (X,))
