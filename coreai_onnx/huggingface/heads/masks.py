"""Models that segment what points mark: SAM, SAM-HQ, SAM 2.

The layout is that of optimum and transformers.js: ``vision_encoder.onnx`` reads a picture once,
``prompt_encoder_mask_decoder.onnx`` any number of points in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.decoders import BATCH
from coreai_onnx.huggingface.generation.session_model import run
from coreai_onnx.huggingface.heads.inputs import image_size
from coreai_onnx.huggingface.media.model_part import ModelInput, ModelPart
from coreai_onnx.huggingface.transformers_names import ModelOutput
from coreai_onnx.model.files.program_files import MEDIA_FILES
from coreai_onnx.runtime.sessions.session import Session

VISION_FILE, MASKS_FILE = MEDIA_FILES["image"], "prompt_encoder_mask_decoder.onnx"
_PICTURE, _INTERMEDIATE, _POSITIONS = (
    "image_embeddings",
    "intermediate_embeddings",
    "image_positional_embeddings",
)
_POINTS = (2, 3, 4)
"""Pictures, masks of each and points of a mask in an example."""
_DIMS = {0: BATCH, 1: "point_batch_size", 2: "nb_points_per_image"}


def mask_parts(model: Any) -> dict[str, ModelPart]:
    """Return the two parts of a model, by file.

    Args:
        model: A model that ``AutoModelForMaskGeneration`` has.

    Raises:
        ModelSourceError: If its class does not take the embeddings of a picture.
    """
    if not hasattr(model, "get_image_embeddings"):
        raise ModelSourceError(
            f"{type(model).__name__} is not exported: it has no embeddings of a picture that "
            "points are looked up in; SamModel, SamHQModel and Sam2Model have"
        )
    # The decoder takes the positions as an input: transformers computes them from its weights.
    compute_positions = model.get_image_wide_positional_embeddings
    # SAM 2 computes them beside others.
    takes_positions = not hasattr(model, "no_memory_embedding")

    def encode(pixel_values: torch.Tensor) -> list[torch.Tensor]:
        embeddings = list(_named(model.get_image_embeddings(pixel_values)).values())
        if takes_positions:
            embeddings.append(compute_positions().repeat(pixel_values.shape[0], 1, 1, 1))
        return embeddings

    def decode(
        points: torch.Tensor, labels: torch.Tensor, *embeddings: torch.Tensor
    ) -> list[torch.Tensor]:
        arguments = _nested(dict(zip(names, embeddings, strict=True)))
        if takes_positions:
            positions = arguments.pop(_POSITIONS)[:1]
            model.get_image_wide_positional_embeddings = lambda: positions
        result = model(input_points=points, input_labels=labels, **arguments)
        if takes_positions:
            del model.get_image_wide_positional_embeddings
        return [result[name] for name in outputs]

    picture = ModelInput("pixel_values", (_POINTS[0], *image_size(model.config)), {0: BATCH})
    with torch.no_grad():
        pixels = picture.example(model.dtype)
        names = list(_named(model.get_image_embeddings(pixels)))
        names += [_POSITIONS] if takes_positions else []
        embeddings = encode(pixels)
    outputs = ["iou_scores", "pred_masks", *([] if takes_positions else ["object_score_logits"])]
    inputs = [
        ModelInput("input_points", (*_POINTS, 2), _DIMS),
        ModelInput("input_labels", _POINTS, _DIMS, 1),
        *(
            ModelInput(name, tuple(x.shape), {0: BATCH})
            for name, x in zip(names, embeddings, strict=True)
        ),
    ]
    return {
        VISION_FILE: ModelPart(model, encode, [picture], names),
        MASKS_FILE: ModelPart(model, decode, inputs, outputs),
    }


class MaskModel:
    """Methods of a model whose two parts run in sessions.

    Attributes:
        sessions: Those of the vision encoder and of the decoder.
    """

    sessions: list[Session]
    _positions: torch.Tensor | None = None

    def get_image_embeddings(self, pixel_values: torch.Tensor, **_: Any) -> Any:
        """Return what transformers' class returns: a tensor, a list, or a tensor and a list."""
        outputs = run(self.sessions[0], {"pixel_values": pixel_values})
        # The same for every picture.
        self._positions = outputs.pop(_POSITIONS, pixel_values[:1])[:1]
        embeddings = _nested(outputs)
        picture = embeddings.pop(_PICTURE)
        return (picture, *embeddings.values()) if embeddings else picture

    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        input_points: torch.Tensor | None = None,
        input_labels: torch.Tensor | None = None,
        image_embeddings: Any = None,
        intermediate_embeddings: Any = None,
        **others: Any,
    ) -> ModelOutput:
        """Return masks and scores of points in pictures, or in their embeddings.

        Args:
            pixel_values: The pictures.
            input_points: The points, ``[batch, masks, points, 2]``.
            input_labels: Their labels; by default all mark the object.
            image_embeddings: The embeddings, instead of pictures.
            intermediate_embeddings: Further ones, of SAM-HQ.
            **others: Further arguments; the file has transformers' defaults.

        Raises:
            ModelSourceError: If points are missing, or an argument does not have the value of the
                file.
        """
        if pixel_values is not None:
            embeddings = self.get_image_embeddings(pixel_values)
        else:
            further = [] if intermediate_embeddings is None else [intermediate_embeddings]
            embeddings = (image_embeddings, *further) if further else image_embeddings
        if others.get("multimask_output") is False or others.get("hq_token_only"):
            raise ModelSourceError(
                "the file returns three masks of each object (multimask_output=True), and those of "
                "SAM-HQ with both tokens (hq_token_only=False)"
            )
        if input_points is None:
            raise ModelSourceError("input_points is missing: the file looks masks up by points")
        if input_labels is None:
            input_labels = torch.ones(input_points.shape[:-1], dtype=torch.int64)
        arguments = {"input_points": input_points, "input_labels": input_labels}
        arguments |= others | _named(embeddings)
        if any(info.name == _POSITIONS for info in self.sessions[1].inputs):
            arguments[_POSITIONS] = self._positions_of(len(input_points))
        return ModelOutput(run(self.sessions[1], arguments))

    def _positions_of(self, batch: int) -> torch.Tensor:
        if self._positions is None:
            picture = self.sessions[0].inputs[0]
            sizes = [int(size) for size in picture.dims[1:] if isinstance(size, int)]
            self.get_image_embeddings(torch.zeros(1, *sizes))
        assert self._positions is not None
        return self._positions.repeat(batch, 1, 1, 1)


def _named(embeddings: Any) -> dict[str, torch.Tensor]:
    """Return the embeddings of a picture by name; those of a list are numbered."""
    if isinstance(embeddings, torch.Tensor):
        return {_PICTURE: embeddings}
    if isinstance(embeddings, tuple):
        # The decoder of SAM-HQ reads the first of the intermediate ones.
        return {_PICTURE: embeddings[0], f"{_INTERMEDIATE}.0": embeddings[1][0]}
    return {f"{_PICTURE}.{i}": x for i, x in enumerate(embeddings)}


def _nested(named: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return named tensors as arguments: numbered ones are a list."""
    arguments: dict[str, Any] = {}
    for name, x in named.items():
        stem, _, number = name.partition(".")
        if number:
            arguments.setdefault(stem, []).append(x)
        else:
            arguments[stem] = x
    return arguments
