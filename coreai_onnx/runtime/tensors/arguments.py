"""The arguments of a module, nested or constant, as the inputs of its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coreai_onnx.errors import InputError
from coreai_onnx.model.metadata import ArgumentTree, NamedTrees, argument_inputs


@dataclass(frozen=True)
class ModuleArguments:
    """The arguments of the module that a model was exported from.

    Attributes:
        positional: Names and trees, in order.
        keyword: Names and trees of those that were passed by name.
    """

    positional: NamedTrees
    keyword: NamedTrees

    @property
    def inputs(self) -> frozenset[str]:
        """The inputs of the model that are in arguments."""
        trees = [tree for _, tree in (*self.positional, *self.keyword)]
        return frozenset(argument_inputs(trees))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of arguments that are not inputs of the model."""
        pairs = (*self.positional, *self.keyword)
        return frozenset(name for name, tree in pairs if name != tree)

    def takes(self, args: tuple[object, ...], named: Mapping[str, object]) -> bool:
        """Return whether only the module takes a call: the model takes its inputs one by one."""
        return not self.names.isdisjoint(named) or any(map(_is_nested, args))

    def bind(self, args: tuple[object, ...], named: Mapping[str, object]) -> dict[str, object]:
        """Return the inputs of the model that a call of the module passes, by name.

        Constants may be omitted; those that are given must be the model's. Names that are not
        arguments are returned as they are.

        Raises:
            InputError: If the number of arguments, a container or a constant differs from those of
                the export.
        """
        if len(args) > len(self.positional):
            names, count = ", ".join(name or "?" for name, _ in self.positional), len(args)
            raise InputError(
                f"{count} positional arguments given, {len(self.positional)} expected: ({names})"
            )
        inputs: dict[str, object] = {}
        trees = dict((*self.positional[len(args) :], *self.keyword))
        for index, ((name, tree), value) in enumerate(zip(self.positional, args, strict=False)):
            _collect(tree, value, name or f"number {index + 1}", inputs)
            if name and name in named:
                raise InputError(f"argument {name!r} is given twice, by position and by name")
        for name, value in named.items():
            # A name that is not an argument's is that of an input, which is its own tree.
            _collect(trees.get(name, name), value, name, inputs)
        return inputs


def _collect(tree: ArgumentTree, value: object, where: str, inputs: dict[str, object]) -> None:
    if isinstance(tree, str):
        if tree in inputs:
            raise InputError(f"input {tree!r} is given twice")
        inputs[tree] = value
    elif isinstance(tree, list):
        if not isinstance(value, list | tuple) or len(value) != len(tree):
            raise _other(where, value, f"a sequence of {len(tree)}")
        for index, (child, one) in enumerate(zip(tree, value, strict=True)):
            _collect(child, one, f"{where}[{index}]", inputs)
    elif "items" in tree:
        _collect_items(dict(map(tuple, tree["items"])), value, where, inputs)
    elif "fields" in tree:
        missing = next((name for name in tree["fields"] if not hasattr(value, name)), None)
        if missing is not None:
            raise _other(where, value, f"an object with the attribute {missing!r}")
        for name, child in tree["fields"].items():
            _collect(child, getattr(value, name), f"{where}.{name}", inputs)
    else:
        _check_constant(tree["value"], value, where)


def _collect_items(
    trees: dict[Any, ArgumentTree], value: object, where: str, inputs: dict[str, object]
) -> None:
    if not isinstance(value, Mapping) or set(value) != set(trees):
        keys = ", ".join(map(repr, trees)) or "no keys"
        raise _other(where, value, f"a mapping with {keys}")
    for key, child in trees.items():
        _collect(child, value[key], f"{where}[{key!r}]", inputs)


def _check_constant(expected: object, value: object, where: str) -> None:
    constant = value.item() if isinstance(value, np.generic) else value
    if type(constant) is not type(expected) or repr(constant) != repr(expected):  # NaN equals NaN
        error = _other(where, value, repr(expected))
        advice = "the model is made for this value: export it again for another one"
        raise InputError(f"{error.args[0]}\n  {advice}")


def _other(where: str, value: object, expected: str) -> InputError:
    simple = isinstance(value, bool | int | float | str | type(None))
    text = repr(value) if simple else f"a {type(value).__name__}"
    if isinstance(value, list | tuple):
        text += f" of {len(value)}"
    if isinstance(value, Mapping):
        text += f" with {', '.join(map(repr, value)) or 'no keys'}"
    return InputError(f"argument {where} is {text}, expected {expected}")


def _is_nested(value: object) -> bool:
    return isinstance(value, list | tuple | Mapping) or dataclasses.is_dataclass(value)
