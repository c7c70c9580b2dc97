"""What a small model of a well-known architecture is: how it is built, fed and exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from coreai_onnx.export.compat.linear_attention import gated_delta_layers_as_ops
from coreai_onnx.export.compat.sizes import multiples_compared

SEED = 20260101
VOCABULARY = 128
WIDTH = 64
HEADS = 4
LAYERS = 2
SIZES = ((2, 9), (1, 5), (3, 17))
"""Batch and length of the export, and of the two further runs."""

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """A model and what to feed it.

    Attributes:
        name: For test ids and tables.
        make: Builds the module in float32.
        inputs: Keyword arguments of its forward for a batch size and a length.
        dynamic: ``dynamic_shapes`` for ``torch.export.export``.
        sizes: Batch and length of the export, and of the further runs.
        note: What of it is not dynamic, and why.
        deferred: Whether torch turns its guards on sizes into checks at run time.
        exception: Row of the table of tolerances, if not the default.
        keeps: How often composites are called that torch has no name for, beside others.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[int, int], Inputs]
    dynamic: Mapping[str, Any]
    sizes: tuple[tuple[int, int], ...] = SIZES
    note: str = ""
    deferred: bool = False
    exception: str | None = None
    keeps: Mapping[str, int] = field(default_factory=dict)

    def module(self, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
        """Return the module, with the same weights each time."""
        torch.manual_seed(SEED)
        module = self.make().eval()
        for layer in module.modules():
            for parameter in layer.parameters(recurse=False):
                _spread(parameter, is_filter=isinstance(layer, torch.nn.modules.conv._ConvNd))
        return module.to(dtype)

    def arguments(self, batch: int, length: int, dtype: torch.dtype = torch.float32) -> Inputs:
        """Return random arguments; floating ones in ``dtype``."""
        torch.manual_seed(SEED + batch * 1000 + length)
        given = self.inputs(batch, length)
        return {n: x.to(dtype) if x.is_floating_point() else x for n, x in given.items()}

    def export(
        self, module: torch.nn.Module, dtype: torch.dtype = torch.float32
    ) -> ExportedProgram:
        """Export the module at the first of the sizes."""
        arguments = self.arguments(*self.sizes[0], dtype)
        with torch.no_grad(), gated_delta_layers_as_ops(module), multiples_compared():
            return torch.export.export(
                module,
                (),
                kwargs=arguments,
                dynamic_shapes=dict(self.dynamic),
                prefer_deferred_runtime_asserts_over_guards=self.deferred,
            )


def _spread(parameter: torch.nn.Parameter, *, is_filter: bool) -> None:
    """Give a parameter values that make every layer count.

    Norms and biases start as ones and zeros, and matrices start near zero: both hide mistakes.
    """
    if parameter.ndim < 2:
        torch.nn.init.normal_(parameter, mean=parameter.detach().mean().item(), std=0.1)
    else:
        fan_in = parameter[0].numel() if is_filter else parameter.shape[-1]
        torch.nn.init.normal_(parameter, std=fan_in**-0.5)


def expected_outputs(module: torch.nn.Module, arguments: Inputs) -> list[torch.Tensor]:
    """Return the tensors that the module returns, in order."""
    with torch.no_grad():
        leaves = torch.utils._pytree.tree_leaves(module(**arguments))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


# ---------------------------------------------------------------------- inputs of many models
def token_ids(batch: int, length: int) -> torch.Tensor:
    """Return random ids; 0 … 3 are left to padding and the like."""
    return torch.randint(4, VOCABULARY, (batch, length))


def ids(batch: int, length: int) -> Inputs:
    """Token ids."""
    return {"input_ids": token_ids(batch, length)}


def ids_and_mask(batch: int, length: int) -> Inputs:
    """Token ids; in the first row a third of them is padding at the end."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - length // 3 :] = 0
    return {"input_ids": token_ids(batch, length), "attention_mask": mask}


def ids_and_left_mask(batch: int, length: int) -> Inputs:
    """Token ids; in the first row a third of them is padding at the start."""
    given = ids_and_mask(batch, length)
    return {**given, "attention_mask": given["attention_mask"].flip(1)}


def images(batch: int, length: int) -> Inputs:
    """Square images of 32 × 32."""
    del length
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


# ---------------------------------------------------------------------- dynamic dims
def token_dims(*names: str, longest: int = 64) -> dict[str, Any]:
    """Every input is ``[batch, seq]``; nothing given means the ids alone."""
    batch, seq = Dim("batch"), Dim("seq", max=longest)
    return {name: {0: batch, 1: seq} for name in names or ("input_ids",)}


def batch_dims(*names: str) -> dict[str, Any]:
    """Only the batch is dynamic."""
    batch = Dim("batch")
    return {name: {0: batch} for name in names or ("pixel_values",)}
