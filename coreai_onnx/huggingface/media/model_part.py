"""Parts of models that become files: their inputs, outputs and what computes these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ModelInput:
    """An input of a model.

    Attributes:
        name: Its name, a parameter of the model's ``forward``.
        shape: The shape of an example.
        dims: Its dynamic dims, as for ``torch.export.export``.
        value: What an example of integers is full of; None for floats.
    """

    name: str
    shape: tuple[int, ...]
    dims: Mapping[int, Any]
    value: int | None = None

    def example(self, dtype: torch.dtype) -> torch.Tensor:
        """Return an example.

        Args:
            dtype: The dtype of floats.
        """
        if self.value is None:
            return torch.zeros(self.shape, dtype=dtype)
        return torch.full(self.shape, self.value)


class ModelPart(torch.nn.Module):
    """A part of the computation of a model, which becomes a file of its own.

    Attributes:
        input_names: Names of the inputs.
        output_names: Names of the outputs.
        slots: The tensors of the cache: none.
    """

    slots = ()

    def __init__(
        self,
        model: torch.nn.Module,
        compute: Callable[..., Sequence[torch.Tensor]],
        inputs: Sequence[ModelInput],
        output_names: Sequence[str],
    ) -> None:
        """Describe the part.

        Args:
            model: The model, whose modules ``compute`` uses.
            compute: Returns the outputs for the inputs.
            inputs: The inputs.
            output_names: The names of the outputs.
        """
        super().__init__()
        self.model: Any = model
        self._compute = compute
        self._inputs = list(inputs)
        self.input_names = [one.name for one in self._inputs]
        self.output_names = list(output_names)

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the outputs for the inputs in the order of their names."""
        return tuple(self._compute(*inputs))

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments: 2 images or recordings, and 3 texts of 8 tokens."""
        return ([one.example(dtype) for one in self._inputs],)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`; the size of images is fixed by most models."""
        return ([dict(one.dims) for one in self._inputs],)
