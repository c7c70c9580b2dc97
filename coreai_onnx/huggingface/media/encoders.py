"""Encoders of pictures and sound: from what the processor returns to features of the decoder.

A model has one of three forms:

1. ``get_image_features`` of the model returns features of the decoder: the file computes it.
2. It arranges them by the sizes of pictures afterwards (``pack_image_features``), or there is no
   such method: the file computes the encoder and the projector, and the caller arranges.
3. It does not have a projector, and the encoder takes patches of pictures of any size: the file
   computes the encoder; its positions and the ends of pictures are inputs, which transformers
   computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.media.examples import MediaExample, example_of, with_mask
from coreai_onnx.huggingface.transformers_names import attention_implementation, precompute_inputs

MASK = "attention_mask"
"""The input of an encoder that is called without a method: which frames attend to which."""
FEATURES: Mapping[str, str] = {"image": "image_features", "audio": "audio_features"}
"""The output of an encoder, by modality."""
DEEPSTACK = "deepstack_features"
"""The output with features for inner layers, ``[layers, features, size]``."""
NEWLINE = "image_newline"
"""The feature that ends a row of a picture where the caller arranges them, a parameter."""
_PROJECTORS = ("multi_modal_projector", "connector")
_PACKED = "flash_attention_of_coreai_onnx"
"""transformers passes the ends of packed pictures to an attention with "flash" in its name."""


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
        self._example = self._arguments(2)
        self.input_names = list(self._example.tensors)
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
        return ([self._example.dims.get(name, {}) for name in self.input_names],)

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the features, and those of inner layers where the model has them."""
        arguments = dict(zip(self.input_names, inputs, strict=True))
        if self.projector is None:
            with packed_attention(self.encoder):
                # Encoders have names of their own for the first argument.
                first = arguments.pop(self.input_names[0])
                result = self.encoder(first, **arguments, **self._constants, return_dict=True)
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
        tensors = dict(example.tensors)
        grid = tensors.pop("image_grid_thw")
        tensors |= of_grid(self.encoder, grid)
        self._constants = {"grid_thw": grid, **dict.fromkeys(_LENGTHS, 1)}
        patches = example.dims["pixel_values"][0]
        dims = {name: _dims_of(name, patches) for name in tensors}
        return MediaExample(tensors, dims)

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


_LENGTHS = ("max_seqlen", "max_window_seqlen")
"""Arguments of kernels of attention that the export does not call."""


def method_name(modality: str) -> str:
    """Return the name of transformers' method that computes features."""
    return f"get_{modality}_features"


def projector_of(base: Any) -> str | None:
    """Return the name of the layer from the size of an encoder to that of the decoder, or None."""
    return next((n for n in _PROJECTORS if getattr(base, n, None) is not None), None)


def arranges_later(base: Any, modality: str) -> bool:
    """Return whether features are arranged after the projector, by the sizes of pictures."""
    return hasattr(base, "pack_image_features") or not hasattr(base, method_name(modality))


def of_grid(encoder: Any, grid: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return positions and ends of pictures, as transformers computes them for an export.

    Args:
        encoder: The encoder; its weights are not read.
        grid: Frames, rows and columns of patches of each picture, int64 ``[pictures, 3]``.

    Raises:
        LibraryVersionError: If transformers is older than 5.14.
    """
    inputs: dict[str, Any] = {"grid_thw": grid}
    precompute_inputs(encoder, inputs)
    del inputs["grid_thw"]
    return {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}


def _dims_of(name: str, patches: Any) -> dict[int, Any]:
    """Return the dynamic dims of an argument that belongs to a grid."""
    if "cu_" in name:
        return {0: f"{name}_length"}
    if name == "window_index":
        return {0: patches.root}
    return {0: patches}


@contextmanager
def packed_attention(encoder: Any) -> Iterator[None]:
    """While active, an encoder attends within pictures under a mask, without a loop over them."""
    AttentionInterface.register(_PACKED, _attend)
    with attention_implementation(encoder, _PACKED):
        yield


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cu_seq_lens_q: torch.Tensor,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within the pictures that a cumulative sum of their lengths separates."""
    del module, attention_mask, kwargs
    places = torch.arange(query.shape[2], device=query.device)
    picture = (places[:, None] >= cu_seq_lens_q[None, 1:]).sum(1)
    mask = picture[:, None] == picture[None, :]
    result = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask[None, None], scale=scaling
    )
    return result.transpose(1, 2).contiguous(), None
