"""What a trace can tell apart, and what it cannot."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict, deque
from enum import Enum
from typing import Any

import pytest
import torch

from coreai_onnx.export.externalize.equivalence import ModuleTree, equivalence_key, structure


class Color(Enum):
    """An enumeration."""

    RED = 1
    BLUE = 2


class Config:
    """A plain object."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


class Slots:
    """An object with a value outside its dictionary."""

    __slots__ = ("__dict__", "hidden")

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden


def function() -> None: ...


shared = object()


@pytest.mark.parametrize(
    "make",
    [
        lambda: 3,
        lambda: -0.0,
        lambda: float("nan"),
        lambda: "text",
        lambda: [1, (2.0, None), {"a": deque([3])}],
        lambda: OrderedDict(a=1, b=2),
        lambda: {1, 2, "three"},
        lambda: Color.RED,
        lambda: torch.float16,
        lambda: function,
        lambda: functools.partial(function, 1, a=[2]),
        lambda: Config(width=3, inner=Config(names=["a"])),
        lambda: torch.arange(6.0).reshape(2, 3),
        lambda: torch.tensor(3, dtype=torch.bfloat16),
        lambda: torch.tensor([], dtype=torch.bool),
        lambda: shared,
    ],
)
def test_alike(make: Any) -> None:
    assert equivalence_key(make()) == equivalence_key(make())
    hash(equivalence_key(make()))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1, 2),
        ([1, 2], (1, 2)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Color.RED, Color.BLUE),
        (Config(width=3), Config(width=4)),
        (functools.partial(function, 1), functools.partial(function, 2)),
        (lambda: 1, lambda: 1),
        (torch.arange(3.0), torch.arange(3)),
        (torch.arange(3.0), torch.arange(3.0) + 1),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2, 2), torch.zeros(4)),
        (torch.arange(4.0).reshape(2, 2), torch.arange(4.0).reshape(2, 2).t()),
        (torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))),
        (Slots(1), Slots(1)),
        (torch.Generator(), torch.Generator()),
        (torch.nn.ReLU(), torch.nn.ReLU()),
    ],
)
def test_not_alike(a: Any, b: Any) -> None:
    assert equivalence_key(a) != equivalence_key(b)
    assert equivalence_key(a) == equivalence_key(a)


def test_what_holds_itself_comes_to_an_end() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert equivalence_key(loop) == equivalence_key(loop)


class Pair(torch.nn.Module):
    """Two linear layers."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.act = self.first.forward

    def use(self) -> None:
        """A method."""


def test_modules_and_weights_of_a_tree_count_by_their_place() -> None:
    a, b = Pair(), Pair()
    trees = ModuleTree(a), ModuleTree(b)
    for get in (
        lambda m: m.first,
        lambda m: m.first.weight,
        lambda m: [m.first.weight, m.second],
        lambda m: m.use,
        lambda m: m.act,
    ):
        assert equivalence_key(get(a), trees[0]) == equivalence_key(get(b), trees[1])
    assert equivalence_key(a.first, trees[0]) != equivalence_key(b.second, trees[1])
    assert equivalence_key(a.first.weight, trees[0]) != equivalence_key(b.first.bias, trees[1])
    assert equivalence_key(a.first, trees[1]) != equivalence_key(b.first, trees[1])


def test_structures() -> None:
    assert structure(Pair()) == structure(Pair())

    def changed(change: Any) -> torch.nn.Module:
        module = Pair()
        change(module)
        return module

    for change in (
        lambda m: setattr(m, "second", m.first),
        lambda m: setattr(m.second, "weight", m.first.weight),
        lambda m: setattr(m, "second", torch.nn.Identity()),
        lambda m: setattr(m.first, "bias", None),
        lambda m: m.half(),
        lambda m: m.requires_grad_(False),
        lambda m: m.register_buffer("extra", torch.zeros(1)),
        lambda m: setattr(m, "first", torch.nn.Linear(4, 5)),
    ):
        assert structure(changed(change)) != structure(Pair())
    persistent, transient = Pair(), Pair()
    persistent.register_buffer("extra", torch.zeros(1))
    transient.register_buffer("extra", torch.zeros(1), persistent=False)
    assert structure(persistent) != structure(transient)
    tied, copied = changed(lambda m: setattr(m, "second", m.first)), Pair()
    assert structure(tied) == structure(copy.deepcopy(tied)) != structure(copied)
