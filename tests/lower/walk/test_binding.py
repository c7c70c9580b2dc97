"""Arguments bound to parameters."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from coreai_onnx.lower.walk.binding import (
    bind_arguments,
    bind_by_name,
    declared_arguments,
    resolve,
    schema_name,
)


def call(target: object, *args: object, **kwargs: object) -> fx.Node:
    return fx.Graph().call_function(target, args, kwargs)  # type: ignore[arg-type]  # an op


def test_defaults_are_filled_in() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.ops.aten.add.Tensor, (x, 2))
    args, kwargs = bind_arguments(node, lambda n: f"value of {n.name}")
    assert args == ["value of x", 2]
    assert kwargs == {"alpha": 1}


def test_keywords_that_are_positional_in_the_schema() -> None:
    node = call(torch.ops.aten.sum.dim_IntList, 1, keepdim=True, dim=[0])
    args, kwargs = bind_arguments(node, lambda n: n)
    assert args == [1, [0], True]
    assert kwargs == {"dtype": None}


def test_only_declared_arguments_are_passed() -> None:
    def some(op: object, dim: object, self: object, *, dtype: object) -> None: ...
    def several(op: object, self: object, start: object = 0, dim: object = None) -> None: ...
    def anything(op: object, *args: object, **kwargs: object) -> None: ...

    target = torch.ops.aten.sum.dim_IntList
    arguments = bind_arguments(call(target, 1, [0]), lambda n: n)
    assert declared_arguments(some, target, *arguments) == ([[0], 1], {"dtype": None})
    assert declared_arguments(several, target, *arguments) == ([1], {"dim": [0]})
    assert declared_arguments(anything, target, *arguments) == ([1, [0], False], {"dtype": None})


def test_names_in_the_schema() -> None:
    assert [schema_name(n) for n in ("from_", "input_", "x")] == ["from", "input_", "x"]


def test_nodes_in_lists_are_resolved() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    got = resolve({"a": (x, [y, 3])}, lambda n: n.name)
    assert got == {"a": ["x", ["y", 3]]}


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1, 2), {}, {"x": 1, "y": 2}),
        ((1, None), {}, {"x": 1}),
        ((None, 2), {"scale": 3, "generator": 4}, {"x": None, "y": 2, "scale": 3}),
        ((1, 2, 3, 4), {}, {"x": 1, "y": 2, "scale": 3}),
    ],
)
def test_bind_by_name(
    args: tuple[object, ...], kwargs: dict[str, object], expected: dict[str, object]
) -> None:
    def function(x: object, y: object = 0, scale: object = 1) -> object:
        return x, y, scale

    assert bind_by_name(function, args, kwargs) == expected
