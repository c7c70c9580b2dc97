"""Mask generation: the picture in one file, points in the other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.errors import CoreaiError, ModelSourceError
from coreai_onnx.huggingface import export_model, open_folder
from tests.models.transformers_pipelines import ALL_PIPELINES
from tests.support.tolerances import assert_close

SIZE = 64
_DECODER = {
    "hidden_size": 32, "mlp_dim": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
    "iou_head_hidden_dim": 32,
}  # fmt: skip
_PROMPTS = {"hidden_size": 32, "image_size": SIZE, "patch_size": 16, "mask_input_channels": 4}
_VISION = {
    "hidden_size": 16, "output_channels": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": SIZE, "patch_size": 16, "global_attn_indexes": [1], "window_size": 2,
    "mlp_dim": 32, "num_pos_feats": 16,
}  # fmt: skip
_HIERA = {
    "model_type": "sam2_hiera_det_model", "hidden_size": 8, "num_attention_heads": 1,
    "image_size": [SIZE, SIZE], "blocks_per_stage": [1, 1, 2, 1],
    "embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 2, 4, 8],
    "window_size_per_stage": [8, 4, 4, 4], "global_attention_blocks": [3],
    "window_positional_embedding_background_size": [4, 4],
}  # fmt: skip
_PYRAMID = {
    "backbone_config": _HIERA, "backbone_channel_list": [64, 32, 16, 8], "fpn_hidden_size": 32,
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]], "image_size": SIZE,
}  # fmt: skip
_PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Sam": (_VISION, _DECODER),
    "SamHQ": (_VISION, {**_DECODER, "vit_dim": 16}),
    "Sam2": (_PYRAMID, _DECODER),
}


def segmenter(kind: str) -> Any:
    """Return a model with random weights of the size that normalizes activations."""
    vision, decoder = _PARTS[kind]
    config = getattr(transformers, f"{kind}Config")(
        vision_config=vision, prompt_encoder_config=_PROMPTS, mask_decoder_config=decoder
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return model


def arguments(batch: int, masks: int, points: int) -> dict[str, torch.Tensor]:
    """Return pictures and points; some points are background, some padding."""
    torch.manual_seed(batch)
    labels = torch.ones(batch, masks, points, dtype=torch.int64)
    labels[0, 0, -1] = 0
    labels[-1, -1, 0] = -10
    return {
        "pixel_values": torch.randn(batch, 3, SIZE, SIZE),
        "input_points": torch.rand(batch, masks, points, 2) * SIZE,
        "input_labels": labels,
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", _PARTS if ALL_PIPELINES in os.environ else ["Sam"])
def test_masks_of_points(kind: str, tmp_path: Path) -> None:
    model = segmenter(kind)
    exported = export_model(model, tmp_path / "folder")
    assert exported.task == "mask-generation"
    assert set(exported.programs) == {"vision_encoder.onnx", "prompt_encoder_mask_decoder.onnx"}
    opened = open_folder(exported.path)
    for batch, masks, points in ((1, 2, 1), (3, 1, 5)):
        given = arguments(batch, masks, points)
        with torch.no_grad():
            wanted = model(**given)
        outputs = opened(**given)
        for name, output in outputs.items():
            assert_close(output, wanted[name])
    # The picture once, other points of it, as transformers' pipeline does.
    embeddings = opened.get_image_embeddings(given.pop("pixel_values"))
    is_pair = isinstance(embeddings, tuple)
    names = ("image_embeddings", "intermediate_embeddings")[: 2 if is_pair else 1]
    given |= dict(zip(names, embeddings if is_pair else [embeddings], strict=True))
    for model_of_file in (opened, open_folder(exported.path)):
        assert_close(model_of_file(**given).pred_masks, wanted.pred_masks)
    refuse_other_arguments(opened, given)
    if kind == "Sam":
        check_names_of_transformers_js(exported.path)


def refuse_other_arguments(opened: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ModelSourceError, match="has no input input_boxes"):
        opened(**given, input_boxes=torch.ones(3, 1, 4))
    with pytest.raises(ModelSourceError, match="three masks of each object"):
        opened(**given, multimask_output=False)
    with pytest.raises(ModelSourceError, match="input_points is"):
        opened(image_embeddings=given["image_embeddings"])
    with pytest.raises(CoreaiError, match=r"pixel_values.*64"):
        opened(pixel_values=torch.zeros(1, 3, 32, 32), input_points=torch.zeros(1, 1, 1, 2))


def check_names_of_transformers_js(folder: Path) -> None:
    """transformers.js passes these by name."""
    vision, masks = (
        coreai_onnx.session(folder / f"{name}.onnx")
        for name in ("vision_encoder", "prompt_encoder_mask_decoder")
    )
    embeddings = ["image_embeddings", "image_positional_embeddings"]
    assert [info.name for info in vision.outputs] == embeddings
    names = [info.name for info in masks.inputs]
    assert names == ["input_points", "input_labels", *embeddings]
    assert [info.name for info in masks.outputs] == ["iou_scores", "pred_masks"]
