"""Models that run once: encoders and classifiers of text, images and audio."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import Dim

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.decoders import BATCH, SEQUENCE
from coreai_onnx.huggingface.tasks import Task

_DEFAULT_IMAGE = 224
_IMAGE, _AUDIO, _SEGMENTS = "pixel_values", "input_values", "token_type_ids"
_SAMPLES, _FEWEST_SAMPLES = 4000, 800
"""Samples of the example, and the fewest: 50 ms, which most models make two frames of."""
SAMPLES = "number_of_samples"


class Head(torch.nn.Module):
    """A model with some of its results as outputs.

    Attributes:
        input_names: Names of the inputs: ``input_ids``, ``pixel_values``, ``input_values``,
            ``attention_mask`` and, where the model has segments, ``token_type_ids``; those that the
            model takes.
        output_names: Names of the outputs, those of the model's result.
        slots: The tensors of the cache: none.
    """

    slots = ()

    def __init__(self, model: torch.nn.Module, task: Task) -> None:
        """Find out which inputs the model takes and which of the task's outputs it has.

        Raises:
            ModelSourceError: If its result has none of them.
        """
        super().__init__()
        self.model: Any = model
        self.input_names = _inputs(self.model, task)
        self._separate = len(task.takes) > 1
        inputs = ", ".join(self.input_names)
        with (
            torch.no_grad(),
            failures_as(
                ModelSourceError, f"{type(model).__name__} does not run with {inputs} alone"
            ),
        ):
            # A call tells which outputs there are: classes do not declare them.
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
        """Return example arguments: 2 images or recordings, and 3 texts of 8 tokens."""
        inputs = []
        for name in self.input_names:
            if name == _IMAGE:
                inputs.append(torch.zeros(2, *_image_size(self.model.config), dtype=dtype))
            elif name == _AUDIO:
                inputs.append(torch.zeros(2, _SAMPLES, dtype=dtype))
            else:
                # A batch of 3 and one of 2: torch.export must not find both equal.
                inputs.append(torch.full((3, 8), int(name != _SEGMENTS)))
        return (inputs,)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`; the size of images is fixed by most models."""
        # CLIP compares any number of texts with any number of images.
        text, image = ("text_", "image_") if self._separate else ("", "")
        dims = {0: f"{text}{BATCH}", 1: SEQUENCE}
        samples = Dim(SAMPLES, min=_FEWEST_SAMPLES)
        others = {_IMAGE: {0: f"{image}{BATCH}"}, _AUDIO: {0: BATCH, 1: samples}}
        return ([others.get(name, dims) for name in self.input_names],)

    def _result(self, inputs: Sequence[torch.Tensor]) -> Any:
        arguments = dict(zip(self.input_names, inputs, strict=True))
        return self.model(**arguments, return_dict=True)


def _inputs(model: Any, task: Task) -> list[str]:
    taken = inspect.signature(model.forward).parameters
    kinds = {_IMAGE: "image", _AUDIO: "audio"}
    takes = task.takes or (kinds.get(model.main_input_name, "text"),)
    names = ["input_ids"] if "text" in takes else []
    names += [name for name, kind in kinds.items() if kind in takes]
    if "text" in takes:
        names.append("attention_mask")
        segments = getattr(model.config, "type_vocab_size", None) or 0
        # With a single type, models such as RoBERTa ignore the input.
        names += [_SEGMENTS] if segments > 1 else []
    return [name for name in names if name in taken]


def _image_size(config: Any) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a model takes."""
    # Models of text and images have the size in a configuration inside of theirs.
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None) or _DEFAULT_IMAGE
    height, width = size if isinstance(size, Sequence) else (size, size)
    return getattr(config, "num_channels", 3), int(height), int(width)


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    # A model without floating parameters still needs a dtype for its images.
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
