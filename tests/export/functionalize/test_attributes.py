"""What modules keep in plain attributes: state, or a warning that names it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import coreai_onnx
from coreai_onnx import TorchConverter
from coreai_onnx.errors import DroppedStateWarning
from coreai_onnx.export.functionalize.attributes import Attributes
from tests.support.tolerances import assert_close

Tensor = torch.Tensor
X = torch.tensor([[1.0, 2.0, 3.0]])


class Holder:
    """An object of the user's."""

    def __init__(self) -> None:
        self.total = torch.zeros(1, 3)
        self.rows = [torch.zeros(1, 3)]
        self.config = {"scale": 2}


class Assigned(torch.nn.Module):
    """New tensors take the places of old ones: in an attribute, an object and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.last = Holder(), torch.zeros(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        before = self.last + self.held.total + self.held.rows[0]
        self.last = x * self.held.config["scale"]
        self.held.total = self.held.total + x
        self.held.rows[0] = self.held.rows[0] - x
        return before


class Keeps(torch.nn.Module):
    """Keeps something that is no state."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.count, self.seen = what, 0, torch.zeros(1, 3)
        self.inner = torch.nn.Module()
        self.inner.rows = []  # type: ignore[assignment]  # torch thinks it is a tensor or module
        self.cache = DynamicCache()

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "count":
            self.count += 1
        elif self.what == "inner.rows[0]":
            rows: Any = self.inner.rows
            rows.append(x)
        elif self.what == "seen":
            self.seen = torch.cat([self.seen, x])
        elif self.what == "cache":
            self.cache.update(x[None, None], x[None, None], 0)
        return x * 2


@pytest.mark.parametrize("buffers", [False, True])
def test_what_is_assigned_is_state(buffers: bool) -> None:
    module, eager = Assigned(), Assigned()
    if buffers:
        module.register_buffer("unused", torch.ones(2))
    program = coreai_onnx.convert(module, (X,))
    session = coreai_onnx.session(program, kernels=False)
    assert set(session.states) == {"last", "held.total", "held.rows[0]"}
    for step in range(3):
        assert_close(session.run(X + step)[0], eager(X + step))
    assert_close(module.held.total, torch.zeros(1, 3))
    assert_close(module.held.rows[0], torch.zeros(1, 3))
    assert type(module.last) is torch.Tensor


@pytest.mark.parametrize("what", ["count", "inner.rows[0]", "seen", "cache"])
def test_what_no_state_can_hold_is_named(what: str) -> None:
    module = Keeps(what)
    with pytest.warns(DroppedStateWarning, match=f"(?s)in {what}".replace("[0]", r"\[0\]")):
        coreai_onnx.convert(module, (X,))
    assert (module.count, module.inner.rows, module.cache.layers) == (0, [], [])
    assert_close(module.seen, torch.zeros(1, 3))


def test_who_keeps_nothing_is_not_warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coreai_onnx.convert(Keeps("nothing"), (X,))


def test_a_lone_number_is_what_it_was_before_the_export() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = {"calls": torch.tensor(5)}

        def forward(self, x: Tensor) -> Tensor:
            self.held["calls"].add_(1)
            return x + self.held["calls"]

    module = Counts()
    session = coreai_onnx.session(coreai_onnx.convert(module, (X,)), kernels=False)
    assert int(module.held["calls"]) == 5
    assert [float(session.run(X)[0][0, 0]) for _ in range(3)] == [7.0, 8.0, 9.0]
    assert session.states == ("held['calls']",)


def test_modules_and_parameters_are_not_looked_at() -> None:
    linear = torch.nn.Linear(2, 2)
    linear.child = torch.nn.Linear(2, 2)
    linear.again = [linear.child]  # type: ignore[assignment]  # torch thinks it is a module
    assert Attributes(linear).names == {}


def test_a_program_of_the_users_own_has_the_state_too() -> None:
    class Total(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = Holder()

        def forward(self, x: Tensor) -> Tensor:
            self.held.total.add_(x)
            return self.held.total * 2

    program = TorchConverter().add_exported_program(torch.export.export(Total(), (X,))).to_onnx()
    session, eager = coreai_onnx.session(program, kernels=False), Total()
    for step in range(3):
        assert_close(session.run(X + step)[0], eager(X + step))


class Scaled(torch.nn.Module):
    """Scales its weight once, before the first call, as RWKV does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 8.0))
        self.is_scaled = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_scaled:
            with torch.no_grad():
                self.weight.div_(2)
            self.is_scaled = True
        return x * self.weight


@pytest.mark.parametrize("decompose", [False, True])
def test_parameters_that_forward_changes_are_named(decompose: bool) -> None:
    module = Scaled()
    program = torch.export.export(Scaled(), (X,))
    if decompose:
        program = program.run_decompositions()
    with pytest.warns(DroppedStateWarning, match="changes the parameters weight; in the converted"):
        converted = coreai_onnx.TorchConverter().add_exported_program(program).to_onnx()
    session = coreai_onnx.session(converted, kernels=False)
    assert session.states == ()
    for _ in range(2):
        assert_close(session.run(X)[0], module(X))


def test_a_module_keeps_its_parameters_through_a_conversion() -> None:
    module = Scaled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        coreai_onnx.convert(module, (X,))
    texts = [str(w.message) for w in caught if w.category is DroppedStateWarning]
    assert ["is_scaled" in text for text in texts] == [True, False]
    assert "the parameters weight;" in texts[1]
    assert_close(module.weight, torch.full((3,), 8.0))


class Observed(torch.nn.Module):
    """Adds a hook in the first forward, and notes that it did."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "observed"):
            self.inner.register_forward_hook(lambda _module, _inputs, result: result * 2)
            self.observed = True
        return self.inner(x)


@pytest.mark.parametrize("targets", [[], ["auto"], [Observed]], ids=["plain", "auto", "module"])
def test_hooks_are_restored_with_the_attributes(targets: list[Any]) -> None:
    model = torch.nn.Sequential(Observed())
    program = coreai_onnx.convert(model, (X,), externalize_modules=targets)
    assert_close(program.run(X)[0], X.tanh() * 2)
    assert_close(model(X), X.tanh() * 2)
