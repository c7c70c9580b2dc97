"""Models that run once: encoders and classifiers of text, images and audio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.heads.inputs import ModelInput, inputs_of
from coreai_onnx.huggingface.heads.tasks import Task


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


class Head(ModelPart):
    """A model with some of its results as outputs; the inputs are those of `inputs_of`."""

    def __init__(self, model: torch.nn.Module, task: Task) -> None:
        """Find out which inputs the model takes and which of the task's outputs it has.

        Raises:
            ModelSourceError: If its result has none of them.
        """
        super().__init__(model, self._outputs, inputs_of(model, task), ())
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

    def _outputs(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self._result(inputs)
        return tuple(result[name] for name in self.output_names)

    def _result(self, inputs: Sequence[torch.Tensor]) -> Any:
        arguments = dict(zip(self.input_names, inputs, strict=True))
        return self.model(**arguments, return_dict=True)


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    # A model without floating parameters still needs a dtype for its images.
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
