"""Encoders of pictures and sound: from what the processor returns to features of the decoder.

A model has one of three forms:

1. ``get_image_features`` of the model returns features of the decoder: the file computes it.
2. It arranges them by the sizes of pictures afterwards (``pack_image_features``), or there is no
   such method: the file computes the encoder and the projector, and the caller arranges.
3. It does not have a projector, and the encoder takes patches of pictures of any size: the file
   computes the encoder, and its positions and the ends of pictures from the sizes of pictures in
   patches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.media.examples import COUNT, MediaExample, example_of, with_mask
from coreai_onnx.huggingface.media.grids import (
    LENGTHS,
    arguments_of,
    names_of_grid,
    packed_attention,
    places_of,
)

MASK = "attention_mask"
"""The input of an encoder that is called without a method: which frames attend to which."""
FEATURES: Mapping[str, str] = {"image": "image_features", "audio": "audio_features"}
"""The output of an encoder, by modality."""
DEEPSTACK = "deepstack_features"
"""The output with features for inner layers, ``[layers, features, size]``."""
NEWLINE = "image_newline"
"""The feature that ends a row of a picture where the caller arranges them, a parameter."""
RENAMED: Mapping[str, Mapping[str, str]] = {
    "qwen2_vl": {"image_grid_thw": "grid_thw"},
    "voxtral": {"input_features": "audio_values"},
}
"""Inputs whose name in transformers.js is not that of transformers, by model type."""
_GRID = "image_grid_thw"
_PROJECTORS = ("multi_modal_projector", "connector", "visual_projection")


class MediaEncoder(torch.nn.Module):
    """The encoder of pictures or sound of a model.

    Attributes:
        input_names: Names of the inputs.
        output_names: Names of the outputs.
        slots: The tensors of a cache: none.
    """

    slots = ()

    def __init__(self, model: Any, modality: str) -> None:
        """Find out what the encoder takes.

        Raises:
            ModelSourceError: If the model has no such encoder, or one of another form.
        """
        super().__init__()
        self.model, self.modality = model, modality
        self.projector = projector_of(self.base)
        if self.method is None and self.projector is None:
            raise ModelSourceError(
                f"{type(model).__name__}: its encoder has neither {method_name(modality)} nor a "
                "projector; such models are not exported yet"
            )
        self._constants: dict[str, Any] = {}
        self._of_grid: list[str] = []
        self._example = self._arguments(2)
        self._names = list(self._example.tensors)
        renamed = RENAMED.get(model.config.model_type, {})
        self.input_names = [renamed.get(name, name) for name in self._names]
        with torch.no_grad():
            tensors = self._example.tensors
            self._is_list = False
            if self.method is not None and self.projector is not None:
                result = self.method(**tensors, **self._constants, return_dict=True)
                self._is_list = isinstance(result.pooler_output, list | tuple)
            count = len(self(list(tensors.values())))
        names = [FEATURES[modality], NEWLINE if self.is_arranged_later else DEEPSTACK]
        self.output_names = names[:count]

    # Not attributes: torch.export must find each layer in one place only.
    @property
    def base(self) -> Any:
        """The model without its head, which has the method and the layers."""
        return self.model.base_model

    @property
    def encoder(self) -> Any:
        """The encoder alone."""
        return self.model.get_encoder(modality=self.modality)

    @property
    def method(self) -> Callable[..., Any] | None:
        """The method that computes features."""
        return getattr(self.base, method_name(self.modality), None)

    @property
    def is_arranged_later(self) -> bool:
        """Whether the caller arranges the features."""
        return arranges_later(self.base, self.modality)

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments."""
        return (self.arguments(2, dtype),)

    def arguments(self, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return arguments for a number of pictures or sounds."""
        tensors = self._arguments(count).tensors.values()
        return [x.to(dtype) if x.is_floating_point() else x for x in tensors]

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        return ([self._example.dims.get(name, {}) for name in self._names],)

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the features, and those of inner layers where the model has them."""
        arguments = dict(zip(self._names, inputs, strict=True))
        if self.projector is None:
            encoder, (pixels, grid) = self.encoder, inputs
            compute = arguments_of(
                encoder, places_of(grid, pixels.shape[0], encoder.spatial_merge_size)
            )
            further = {name: compute[name]() for name in self._of_grid}
            with packed_attention(encoder):
                # Encoders have names of their own for the first argument.
                result = encoder(
                    pixels, grid_thw=grid, **further, **self._constants, return_dict=True
                )
            inner = getattr(result, DEEPSTACK, None)
            features = result.pooler_output
            return (features,) if inner is None else (features, torch.stack(list(inner)))
        features = self._projected(arguments)
        if self.is_arranged_later:
            newline = getattr(self.base, NEWLINE, None)
            return (features,) if newline is None else (features, newline + 0)
        if self._is_list:
            return (features.flatten(0, -2),)
        # Two axes are those of features that transformers has in a list.
        return (features if features.ndim > 2 else features[None],)

    def _arguments(self, count: int) -> MediaExample:
        example = example_of(self.model, self.modality, self.method or self._projected, count)
        if self.projector is not None:
            takes = inspect.signature(self.encoder.forward).parameters
            if self.method is None and MASK in takes:
                return with_mask(example, self.encoder.config.max_source_positions)
            if self.is_arranged_later and self.method is not None:
                # A picture of the size of the encoder is one tile, beside one of the whole.
                self._constants = {"image_sizes": [example.tensors["pixel_values"].shape[2:]]}
            return example
        self._of_grid = names_of_grid(self.encoder, example.tensors[_GRID])
        self._constants = dict.fromkeys(LENGTHS, 1)
        return MediaExample(example.tensors, {**example.dims, _GRID: {0: COUNT["image"]}})

    def _projected(self, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the result of the projector, without what the model makes of it."""
        if self.method is None:
            state = self.encoder(**arguments, return_dict=True).last_hidden_state
            return getattr(self.base, str(self.projector))(state)  # type: ignore[no-any-return]  # a layer

        # Not a hook: torch.export must see the end of the layer's call. An attribute of the object
        # precedes its layers.
        name = str(self.projector)
        projector = getattr(self.base, name)

        def stop(*args: Any, **kwargs: Any) -> None:
            raise _ProjectionDoneError(projector(*args, **kwargs))

        vars(self.base)[name] = stop
        try:
            self.method(**arguments, **self._constants)
        except _ProjectionDoneError as result:
            return result.features
        finally:
            del vars(self.base)[name]
        raise ModelSourceError(f"{type(self.model).__name__}: the projector is not called")


class _ProjectionDoneError(Exception):
    """Ends a method of transformers at the projector: lists after it have a fixed length."""

    def __init__(self, features: torch.Tensor) -> None:
        super().__init__()
        self.features = features


def method_name(modality: str) -> str:
    """Return the name of transformers' method that computes features."""
    return f"get_{modality}_features"


def projector_of(base: Any) -> str | None:
    """Return the name of the layer from the size of an encoder to that of the decoder, or None."""
    return next((n for n in _PROJECTORS if getattr(base, n, None) is not None), None)


def arranges_later(base: Any, modality: str) -> bool:
    """Return whether features are arranged after the projector, by the sizes of pictures."""
    return hasattr(base, "pack_image_features") or not hasattr(base, method_name(modality))
