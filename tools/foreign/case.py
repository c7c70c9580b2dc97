"""A model of another library: how it is built, fed and exported."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

SEED = 20261122
VOCABULARY = 128


class Size(NamedTuple):
    """How large the inputs are; an input function reads what its model lets vary."""

    batch: int
    length: int
    side: int


FIRST = Size(2, 12, 64)
"""Of the export and the first run."""
SECOND = Size(3, 20, 96)
"""Of the second run."""

Inputs = dict[str, Any]
"""Keyword arguments of a forward: tensors, or lists and dicts of them."""


@dataclass(frozen=True)
class Case:
    """A model and what to feed it.

    Attributes:
        name: Unique among all cases.
        library: Whose model it is; a row of the summary.
        make: Builds the module in float32.
        inputs: Makes the arguments of its forward for a size. A dim that differs between two
            sizes is dynamic.
        finish: Applied to the module in its dtype: ``quantize_``, or nothing.
        dtypes: Dtypes that the model is meant for.
        quantizes: Whether the model rounds its activations to integers while it runs.
    """

    name: str
    library: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[Size], Inputs]
    finish: Callable[[torch.nn.Module], None] = lambda module: None
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    quantizes: bool = False

    def module(self, dtype: torch.dtype) -> torch.nn.Module:
        """Return the module, with the same weights each time."""
        torch.manual_seed(SEED)
        module = self.make().eval().requires_grad_(requires_grad=False)
        for layer in module.modules():
            spread(layer)
        module = module.to(dtype)
        self.finish(module)
        return module

    def arguments(self, size: Size, dtype: torch.dtype) -> Inputs:
        """Return random arguments; floating ones in ``dtype``."""
        torch.manual_seed(SEED + size.batch)
        return in_dtype(self.inputs(size), dtype)

    def dynamic_shapes(self) -> Inputs:
        """Return ``Dim.AUTO`` for every dim that differs between the two sizes."""
        first, second = (self.arguments(size, torch.float32) for size in (FIRST, SECOND))
        found: Inputs = pytree.tree_map(dims_that_vary, first, second)
        return found


def in_dtype(arguments: Inputs, dtype: torch.dtype) -> Inputs:
    """Return arguments whose floating tensors are in ``dtype``."""

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    given: Inputs = pytree.tree_map(cast, arguments)
    return given


def dims_that_vary(a: Any, b: Any) -> Any:
    """Return ``Dim.AUTO`` for each axis in which two tensors differ; None for other values."""
    if not isinstance(a, torch.Tensor):
        return None
    return {axis: Dim.AUTO for axis in range(a.ndim) if a.shape[axis] != b.shape[axis]}


def spread(layer: torch.nn.Module) -> None:
    """Give parameters that start as a constant, and statistics of norms, values that count.

    Norms start as ones and zeros, layer scales near zero: both hide mistakes.
    """
    for parameter in layer.parameters(recurse=False):
        if parameter.is_floating_point() and parameter.numel() and _is_constant(parameter):
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    if isinstance(getattr(layer, "running_var", None), torch.Tensor):
        layer.running_mean.normal_(std=0.1)
        layer.running_var.uniform_(0.5, 1.5)


def _is_constant(parameter: torch.Tensor) -> bool:
    return bool((parameter == parameter.flatten()[0]).all())


def imported(name: str) -> Any:
    """Return an attribute by its path, ``timm.create_model``, importing its module now.

    Cases name what they build; the libraries are imported where they are measured only.
    """
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


# ---------------------------------------------------------------------- inputs of many models
def token_ids(size: Size) -> torch.Tensor:
    """Return random ids ``[batch, length]``; 0 … 3 are left to padding and the like."""
    return torch.randint(4, VOCABULARY, (size.batch, size.length))


def ids(size: Size) -> Inputs:
    """Token ids."""
    return {"input_ids": token_ids(size)}


def ids_and_mask(size: Size) -> Inputs:
    """Token ids; in the first row the last three are padding."""
    mask = torch.ones(size.batch, size.length, dtype=torch.int64)
    mask[0, -3:] = 0
    return {"input_ids": token_ids(size), "attention_mask": mask}


def image(name: str = "x", side: int | None = None, channels: int = 3) -> Callable[[Size], Inputs]:
    """Return an input function for square images; of any side, or of a fixed one."""
    return functools.partial(_image, name, side, channels)


def _image(name: str, side: int | None, channels: int, size: Size) -> Inputs:
    return {name: torch.randn(size.batch, channels, side or size.side, side or size.side)}
