"""Models that run once: encoders and classifiers of text and images."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.decoders import BATCH, SEQUENCE
from coreai_onnx.huggingface.tasks import Task

_DEFAULT_IMAGE = 224


class Head(torch.nn.Module):
    """A model with some of its results as outputs.

    Attributes:
        input_names: Names of the inputs: ``input_ids``, ``attention_mask`` and, where the model
            has segments, ``token_type_ids``; or ``pixel_values``.
        output_names: Names of the outputs, those of the model's result.
    """

    def __init__(self, model: torch.nn.Module, task: Task) -> None:
        """Find out which inputs the model takes and which of the task's outputs it has.

        Raises:
            ModelSourceError: If its result has none of them.
        """
        super().__init__()
        self.model, self.images = model, task.images
        self.input_names = ["pixel_values"] if task.images else _text_inputs(model)
        with torch.no_grad():
            result = self._result(self.example(_dtype_of(model))[0])
        self.output_names = [name for name in task.outputs if name in result]
        if not self.output_names:
            raise ModelSourceError(
                f"{type(model).__name__} has no {' and no '.join(task.outputs)} in its result, "
                f"so it has no head for the task {task.name!r}"
            )

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the outputs for the inputs in the order of their names."""
        result = self._result(inputs)
        return tuple(result[name] for name in self.output_names)

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments: a batch of 2 with 8 tokens, or of 2 images."""
        if self.images:
            return ([torch.zeros(2, *_image_size(self.model.config), dtype=dtype)],)
        segments = "token_type_ids"
        return ([torch.full((2, 8), int(name != segments)) for name in self.input_names],)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`; the size of images is fixed by most models."""
        dims = {0: BATCH} if self.images else {0: BATCH, 1: SEQUENCE}
        return ([dims for _ in self.input_names],)

    def _result(self, inputs: Sequence[torch.Tensor]) -> Any:
        return self.model(**dict(zip(self.input_names, inputs, strict=True)), return_dict=True)


def _text_inputs(model: torch.nn.Module) -> list[str]:
    taken = inspect.signature(model.forward).parameters
    segments = getattr(model.config, "type_vocab_size", None) or 0
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if segments > 1 else [])]
    return [name for name in names if name in taken]


def _image_size(config: Any) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a model takes."""
    size = getattr(config, "image_size", None) or _DEFAULT_IMAGE
    height, width = size if isinstance(size, Sequence) else (size, size)
    return getattr(config, "num_channels", 3), int(height), int(width)


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
