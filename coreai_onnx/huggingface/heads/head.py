"""Models that run once: encoders and classifiers of text, images and audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.heads.inputs import inputs_of
from coreai_onnx.huggingface.heads.tasks import Task
from coreai_onnx.huggingface.media.model_part import ModelPart


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
