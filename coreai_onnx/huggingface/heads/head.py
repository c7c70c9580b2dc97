"""Models that run once: encoders and classifiers of text, images and audio."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from coreai_onnx.debugging.reference.torch_values import tensor_of
from coreai_onnx.errors import (
    ConversionError,
    ExportError,
    ExportRetryWarning,
    InputError,
    ModelSourceError,
    SpecializationWarning,
    failures_as,
)
from coreai_onnx.huggingface.heads.inputs import IMAGE_DIMS, inputs_of
from coreai_onnx.huggingface.heads.tasks import Task
from coreai_onnx.huggingface.media.model_part import ModelInput, ModelPart
from coreai_onnx.huggingface.verification import difference
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.session import Session

_LARGER = ((64, 32), (56, 28))
"""Rows and columns by which images are enlarged: multiples of the usual patches of 16 and of 14."""

_TIMES_AS_FAR = 8
"""How much farther than torch's own result an output may be from that in float64, as in the sweep
of transformers' classes."""


class Head(ModelPart):
    """A model with some of its results as outputs; the inputs are those of `inputs_of`.

    Attributes:
        any_size: Whether height and width of images are dynamic.
    """

    any_size = False

    def __init__(
        self, model: torch.nn.Module, task: Task, image_size: tuple[int, int] | None = None
    ) -> None:
        """Find out which inputs the model takes and which of the task's outputs it has.

        Args:
            model: The model.
            task: The task.
            image_size: Height and width of images that its image processor makes, if they are
                always the same.

        Raises:
            ModelSourceError: If its result has none of them.
        """
        super().__init__(model, self._outputs, inputs_of(model, task, image_size), ())
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
        self._larger = self._larger_images(_dtype_of(model))
        self.any_size = bool(self._larger)

    def convert_by(self, convert: Callable[[Head], OnnxProgram]) -> OnnxProgram:
        """Convert with images of any size if possible, otherwise of that of the example.

        Args:
            convert: Exports and checks a part.

        Warns:
            SpecializationWarning: If the model takes images of other sizes, and the file does not.
        """
        if not self.any_size:
            return convert(self)
        try:
            with warnings.catch_warnings():
                # Conditions on height and width narrow their dims.
                warnings.simplefilter("ignore", ExportRetryWarning)
                return convert(self)
        except (ConversionError, ExportError, InputError) as error:
            reason = str(error).splitlines()[0]
        self.any_size = False
        program = convert(self)
        height, width = next(one.shape[2:] for one in self._inputs if _is_image(one))
        warnings.warn(
            f"the file takes images of {height} x {width} pixels only; "
            f"with dynamic sizes: {reason}",
            SpecializationWarning,
            stacklevel=2,
        )
        return program

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments, of images of any size larger ones than usual.

        Models treat square images and those of the size that their positions were learned for in
        branches of their own, which a program of any size must not take.
        """
        (usual,) = super().example(dtype)
        if not self.any_size:
            return (usual,)
        return ([self._larger.get(i, x) for i, x in enumerate(usual)],)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`, with height and width if images have any size."""
        (dims,) = super().dynamic_shapes()
        if not self.any_size:
            return (dims,)
        return ([d | (IMAGE_DIMS if i in self._larger else {}) for i, d in enumerate(dims)],)

    @torch.no_grad()
    def check(self, program: OnnxProgram) -> None:
        """Compare the program with torch for images of the usual size.

        Raises:
            ConversionError: If an output differs.
        """
        (inputs,) = super().example(self.model.dtype)
        random = torch.Generator().manual_seed(1)
        for i in self._larger:
            inputs[i] = torch.rand(inputs[i].shape, generator=random).to(inputs[i].dtype)
        session = Session(program, prepack=False)  # the weights stay in a mapped file
        outputs = session.run(**dict(zip(self.input_names, inputs, strict=True)))
        results = [tensor_of(outputs[name]) for name in self.output_names]
        references = self._outputs(*inputs)
        differences = map(difference, results, references)
        # Not ``error > limit``: NaN must fail as well.
        wrong = [
            (name, error)
            for name, (error, limit) in zip(self.output_names, differences, strict=True)
            if not error <= limit
        ]
        if wrong and not self._is_as_exact(inputs, results, references):
            name, error = wrong[0]
            raise ConversionError(
                f"{name} differs from torch by {error:.3g} for images of another size"
            )

    def _is_as_exact(
        self,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        references: Sequence[torch.Tensor],
    ) -> bool:
        """Return whether results are as near to those in float64 as torch's own outputs.

        Detectors select the queries of the largest scores, and rounding changes the order of those
        that are nearly equal.
        """
        exact = copy.deepcopy(self).double()
        doubles = exact([x.double() if x.is_floating_point() else x for x in inputs])
        return all(
            _distance(result, double) <= _TIMES_AS_FAR * _distance(reference, double)
            for result, reference, double in zip(results, references, doubles, strict=True)
        )

    def _larger_images(self, dtype: torch.dtype) -> dict[int, torch.Tensor]:
        """Return images of another size by the number of their input.

        Returns:
            Nothing if there are no images, or the model does not take them.
        """
        random = torch.Generator().manual_seed(0)
        (usual,) = super().example(dtype)
        for rows, columns in _LARGER if any(map(_is_image, self._inputs)) else ():
            images = {}
            for i, one in enumerate(self._inputs):
                if _is_image(one):
                    *first, height, width = one.shape
                    shape = (*first, height + rows, width + columns)
                    images[i] = torch.rand(shape, generator=random).to(dtype)
            try:
                with torch.no_grad():
                    self._outputs(*(images.get(i, x) for i, x in enumerate(usual)))
            except (RuntimeError, ValueError, AssertionError):  # what layers of fixed sizes raise
                continue
            return images
        return {}

    def _outputs(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self._result(inputs)
        return tuple(result[name] for name in self.output_names)

    def _result(self, inputs: Sequence[torch.Tensor]) -> Any:
        arguments = dict(zip(self.input_names, inputs, strict=True))
        return self.model(**arguments, return_dict=True)


def _distance(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual - exact).abs().max()) if actual.shape == exact.shape else math.inf


def _is_image(one: ModelInput) -> bool:
    return one.name == "pixel_values" and len(one.shape) == 4 and 0 in one.dims


def _dtype_of(model: torch.nn.Module) -> torch.dtype:
    # A model without floating parameters still needs a dtype for its images.
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
