"""Compares a user's module numerically with the composite that has its name."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from coreai_onnx.composites.declaration import Composite
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.export.externalize.module_call import ModuleCall, invoke
from coreai_onnx.export.recognize.numeric_probe import (
    MAGNITUDES,
    SEED,
    first_line,
    relative_tolerance,
)

_RAISES = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
"""Other exceptions are defects of the module, which the user must see."""


class _WithoutHooks(torch.nn.Module):
    """A wrapper that calls a module's forward without hooks, with a name for its weights."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **arguments: Any) -> Any:
        return invoke(functools.partial(type(self.module).forward, self.module), arguments)


def probe_difference(
    composite: Composite,
    call: ModuleCall,
    sources: Mapping[str, tuple[str, str]],
    attributes: Mapping[str, Any],
    examples: tuple[Sequence[torch.Tensor], Sequence[Any]],
) -> str:
    """Run module and reference on random inputs, also with other sizes if sizes are dynamic.

    Args:
        composite: The standard composite.
        call: The call.
        sources: For each input of the composite that is present, ``("argument", name)`` or
            ``("weight", name)``.
        attributes: Attributes under the composite's names.
        examples: Fake tensors and symbolic numbers of the call site.

    Returns:
        A description of the difference; empty if there is none.
    """
    generator = torch.Generator().manual_seed(SEED)
    for index, magnitude in enumerate(MAGNITUDES):
        # Last with other sizes, which show whether the module depends on those of the example.
        sizes = _ExampleSizes(other=index == len(MAGNITUDES) - 1)
        tensors = [_random(sizes, e, generator, magnitude) for e in examples[0]]
        arguments = call.arguments(tensors, [sizes(n) for n in examples[1]])
        # First with the module's own weights, then with random ones: new weights, often all zeros
        # or ones, would hide differences.
        weights = _weights(call.module, sources, generator if index else None)
        values = {n: _input(source, arguments, weights) for n, source in sources.items()}
        for name, tensor in composite.admissible(values).items():
            kind, argument = sources[name]
            if isinstance(arguments.get(argument), torch.Tensor) and kind == "argument":
                # The module must get the same inputs as the reference.
                arguments[argument] = tensor
        named = {name: _input(source, arguments, weights) for name, source in sources.items()}
        inputs = [named.get(declared.name) for declared in composite.inputs]
        try:
            expected = pytree.tree_leaves(composite.reference(*inputs, **attributes))
        except _RAISES as error:
            return f"the composite does not take its inputs ({first_line(error)})"
        difference = _compare(call.module, arguments, weights, expected)
        if difference:
            return difference
    shapes = {n: tuple(t.shape) for n, t in named.items()}
    return composite.unproven(shapes, attributes)


class _ExampleSizes:
    """Evaluates symbolic sizes at their example values, or at other allowed values.

    Args:
        other: Whether each symbol is a multiple of its example value, all of them different.
    """

    def __init__(self, *, other: bool) -> None:
        self._other = other
        self._values: dict[sympy.Symbol, int] = {}

    def __call__(self, size: Any) -> int:
        if not isinstance(size, torch.SymInt):
            return int(size)
        for symbol in sorted(size.node.expr.free_symbols, key=str):
            if symbol not in self._values:
                self._values[symbol] = self._choose(size.node.shape_env, symbol)
        return int(size.node.expr.subs(self._values))

    def _choose(self, shape_env: Any, symbol: sympy.Symbol) -> int:
        example = int(shape_env.backed_var_to_val[symbol])
        allowed = shape_env.var_to_range[symbol]
        # Multiples keep what the module may require, such as heads that are a multiple of groups.
        chosen = example * (2 + len(self._values))
        return chosen if self._other and chosen <= allowed.upper else example


def _weights(
    module: torch.nn.Module,
    sources: Mapping[str, tuple[str, str]],
    generator: torch.Generator | None,
) -> dict[str, torch.Tensor]:
    """Return the weights that are inputs of the composite; with a generator, random weights."""
    tensors: dict[str, torch.Tensor] = {}
    for kind, name in sources.values():
        if kind == "weight":
            tensor = getattr(module, name).detach()
            if generator is not None and tensor.dtype.is_floating_point:
                tensor = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            tensors[name] = tensor
    return tensors


def _input(
    source: tuple[str, str],
    arguments: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    kind, name = source
    value = weights[name] if kind == "weight" else arguments[name]
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.int64)


def _compare(
    module: torch.nn.Module,
    arguments: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> str:
    named = {f"module.{name}": tensor for name, tensor in weights.items()}
    with torch.no_grad():
        try:
            result = torch.func.functional_call(_WithoutHooks(module), named, (), dict(arguments))
        except _RAISES as error:
            return f"it fails on other inputs of the same kind ({first_line(error)})"
    leaves = pytree.tree_leaves(result)
    differences = (_difference(g, w) for g, w in zip(leaves, expected, strict=True))
    return next(filter(None, differences), "")


def _difference(actual: torch.Tensor, expected: torch.Tensor) -> str:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return (
            f"it gives {actual.dtype} {tuple(actual.shape)}, "
            f"the composite {expected.dtype} {tuple(expected.shape)}"
        )
    if not expected.numel():
        return ""
    worst = (actual.double() - expected.double()).abs().max().item()
    # Relative to the largest element, since smaller ones may be what cancellation leaves.
    bound = relative_tolerance(expected.dtype) * expected.double().abs().max().item()
    return "" if worst <= bound else f"its result differs by {worst:.3g} on random inputs"


def _random(
    sizes: _ExampleSizes, example: torch.Tensor, generator: torch.Generator, magnitude: float
) -> torch.Tensor:
    shape = [sizes(d) for d in example.shape]
    if example.dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * magnitude).to(example.dtype)
    if example.dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.3
    return torch.randint(0, 5, shape, generator=generator, dtype=example.dtype)
