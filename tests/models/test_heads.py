"""Encoders, classifiers and detectors as exported folders, from the command line.

The configurations have random weights. `docs/language_models.md` lists the architectures.
"""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.cli import main
from coreai_onnx.errors import SpecializationWarning
from coreai_onnx.huggingface.heads.head import Head
from coreai_onnx.huggingface.heads.inputs import IMAGE_DIMS
from coreai_onnx.huggingface.sources import load_source
from tests.huggingface.heads.test_head import VIT
from tests.support.huggingface_folders import BERT
from tests.support.tolerances import assert_close

_DISENTANGLED = {
    **BERT,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "type_vocab_size": 0,
}
_DISTIL = {"vocab_size": 260, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
_MODERN = {**BERT, "pad_token_id": 0, "local_attention": 8, "global_attn_every_n_layers": 2}
_STAGES = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}
_DETR = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 6,
    "backbone": None,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
}
_SPEECH = {
    **{name: size for name, size in BERT.items() if name != "max_position_embeddings"},
    "conv_dim": [16, 16],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
_LAYOUT = {**BERT, "max_2d_position_embeddings": 1024}
_LAYOUT3 = {
    **_LAYOUT, "input_size": 16, "patch_size": 8, "visual_embed": True, "image_size": 16,
    "coordinate_size": 6, "shape_size": 4, "type_vocab_size": 1,
}  # fmt: skip
_SEGFORMER = {
    "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2], "decoder_hidden_size": 16, "image_size": 32,
}  # fmt: skip
_FEATURES = {
    **_STAGES, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip
_DPT = {
    **VIT, "image_size": 32, "backbone_out_indices": [0, 1, 2, 3], "num_hidden_layers": 4,
    "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "is_hybrid": False,
    "reassemble_factors": [4, 2, 1, 0.5],
}  # fmt: skip
_DEPTH_ANYTHING = {
    "backbone_config": {
        **VIT, "model_type": "dinov2", "image_size": 28, "patch_size": 14,
        "reshape_hidden_states": False,
        "out_features": ["stage1", "stage2"], "apply_layernorm": True,
    },
    "reassemble_hidden_size": 32, "patch_size": 14, "reassemble_factors": [2, 1],
    "neck_hidden_sizes": [8, 8], "fusion_hidden_size": 8, "head_hidden_size": 8,
}  # fmt: skip
_TEXT_AND_IMAGE = {
    "text_config": {**BERT, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2},
    "vision_config": {**VIT, "image_size": 32},
    "projection_dim": 32,
}
_CLAP = {
    "text_config": {**BERT, "type_vocab_size": 1, "pad_token_id": 0},
    "audio_config": {
        "spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4],
        "window_size": 4, "depths": [1, 1], "num_attention_heads": [2, 2], "hidden_size": 32,
        "patch_embeds_hidden_size": 16, "projection_dim": 32, "flatten_patch_embeds": True,
    },
    "projection_dim": 32,
}  # fmt: skip
_LISTENER = {
    "vocab_size": 64, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "max_source_positions": 20, "classifier_proj_size": 16,
}  # fmt: skip
_VIDEO = {**VIT, "num_frames": 4}
_MATTE = {
    "backbone_config": {
        **VIT, "model_type": "vitdet", "image_size": 32, "pretrain_image_size": 32,
        "patch_size": 16, "num_channels": 4, "residual_block_indices": [],
        "window_block_indices": [], "out_features": ["stage2"],
    },
    "hidden_size": 32, "convstream_hidden_sizes": [8, 8, 8], "fusion_hidden_sizes": [16, 8, 8, 8],
}  # fmt: skip
_SERIES = {"context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 8}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "BertForMultipleChoice": ("multiple-choice", BERT),
    "LayoutLMForQuestionAnswering": ("document-question-answering", _LAYOUT),
    "LayoutLMv3ForQuestionAnswering": ("document-question-answering", _LAYOUT3),
    "LayoutLMForTokenClassification": ("token-classification", _LAYOUT),
    "SegformerForSemanticSegmentation": ("image-segmentation", _SEGFORMER),
    "BeitForSemanticSegmentation": (
        "image-segmentation",
        {**VIT, "image_size": 32, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    ),
    "DetrForSegmentation": (
        "image-segmentation",
        {**_DETR, "d_model": 64, "encoder_attention_heads": 8, "decoder_attention_heads": 8},
    ),
    "DPTForDepthEstimation": ("depth-estimation", _DPT),
    "DepthAnythingForDepthEstimation": ("depth-estimation", _DEPTH_ANYTHING),
    "Swin2SRForImageSuperResolution": (
        "image-to-image",
        {
            "image_size": 16,
            "embed_dim": 12,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
            "num_channels": 3,
            "upscale": 2,
        },
    ),
    "SuperPointForKeypointDetection": (
        "keypoint-detection",
        {
            "encoder_hidden_sizes": [8, 8, 8, 8],
            "decoder_hidden_size": 16,
            "descriptor_decoder_dim": 16,
            "image_size": 64,
        },
    ),
    "VitPoseForPoseEstimation": (
        "pose-estimation",
        {
            "backbone_config": {
                **VIT,
                "model_type": "vitpose_backbone",
                "image_size": [32, 48],
                "patch_size": [16, 16],
            }
        },
    ),
    "VitMatteForImageMatting": ("image-matting", _MATTE),
    "VideoMAEForVideoClassification": ("video-classification", _VIDEO),
    "TimesformerForVideoClassification": ("video-classification", _VIDEO),
    "OwlViTForObjectDetection": ("zero-shot-object-detection", _TEXT_AND_IMAGE),
    "ClapModel": ("zero-shot-audio-classification", _CLAP),
    "Wav2Vec2ForSequenceClassification": ("audio-classification", _SPEECH),
    "ASTForAudioClassification": (
        "audio-classification",
        {
            **VIT,
            "max_length": 40,
            "num_mel_bins": 16,
            "patch_size": 8,
            "frequency_stride": 8,
            "time_stride": 8,
        },
    ),
    "WhisperForAudioClassification": ("audio-classification", _LISTENER),
    "Wav2Vec2ForAudioFrameClassification": ("audio-frame-classification", _SPEECH),
    "Wav2Vec2ForXVector": (
        "audio-xvector",
        {
            **_SPEECH,
            "tdnn_dim": [16, 16],
            "tdnn_kernel": [3, 1],
            "tdnn_dilation": [1, 1],
            "xvector_output_dim": 16,
        },
    ),
    "PatchTSTForPrediction": ("time-series-prediction", {**_SERIES, "d_model": 16, "ffn_dim": 16}),
    "DistilBertForSequenceClassification": ("text-classification", _DISTIL),
    "DebertaV2ForTokenClassification": ("token-classification", _DISENTANGLED),
    "ModernBertForMaskedLM": ("fill-mask", _MODERN),
    "AlbertForQuestionAnswering": ("question-answering", {**BERT, "embedding_size": 16}),
    "MPNetModel": ("feature-extraction", BERT),
    "SwinForImageClassification": ("image-classification", _SWIN),
    "ResNetForImageClassification": ("image-classification", _STAGES),
    "Dinov2Model": ("feature-extraction", VIT),
    "Wav2Vec2ForCTC": ("automatic-speech-recognition", _SPEECH),
    "YolosForObjectDetection": (
        "object-detection",
        {**VIT, "image_size": [32, 48], "num_detection_tokens": 5},
    ),
    "DetrForObjectDetection": ("object-detection", _DETR),
    "ConditionalDetrForObjectDetection": ("object-detection", _DETR),
    "DeformableDetrForObjectDetection": ("object-detection", {**_DETR, "num_feature_levels": 1}),
}


_ONE_SIZE = ("VitMatteForImageMatting",)
"""They take images of other sizes, but torch.export does not export them with dynamic ones."""
_IN_DOUBLE = ("OwlViTForObjectDetection",)
"""Its logits are cosines times a scale: torch's own float32 is off by 1.4e-5."""


def config_file(name: str, folder: Path) -> Path:
    settings = dict(CASES[name][1])
    if settings.get("use_timm_backbone") is False:
        stages = _FEATURES if name == "DetrForSegmentation" else _STAGES
        settings["backbone_config"] = transformers.ResNetConfig(**stages)
    config = getattr(transformers, name).config_class(**settings)
    config.architectures = [name]
    config.save_pretrained(folder)
    return folder / "config.json"


def inputs_of(head: Head, batch: int, length: int) -> list[torch.Tensor]:
    """Return random inputs; the last tokens of the first text are padding."""
    torch.manual_seed(batch)
    found = []
    sizes = {"batch_size": batch, "sequence_length": length, "number_of_samples": 400 * length}
    sizes |= {"image_batch_size": batch, "audio_batch_size": batch, "text_batch_size": 2 * batch}
    (examples,), (dims,) = head.example(torch.float32), head.dynamic_shapes()
    for name, example, dynamic in zip(head.input_names, examples, dims, strict=True):
        shape = list(example.shape)
        for axis, dim in dynamic.items():
            size = getattr(dim, "__name__", dim)
            # Images of any size: other ones than in the example.
            larger = shape[axis] + 32 * batch
            shape[axis] = larger if size in IMAGE_DIMS.values() else sizes.get(size, 4)
        if example.is_floating_point():
            found.append(torch.randn(shape))
        elif name == "attention_mask":
            mask = torch.ones(shape, dtype=torch.int64)
            mask.view(-1, shape[-1])[0, -1] = 0
            found.append(mask)
        elif name == "bbox":
            found.append(torch.randint(0, 500, shape).cumsum(-1).clamp(max=1000).sort(-1).values)
        else:
            found.append(torch.randint(0, 2 if name == "token_type_ids" else 250, shape))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_configuration_from_the_command_line(name: str, tmp_path: Path) -> None:
    """The task is read from the configuration; batch, length and size of images are dynamic."""
    source = config_file(name, tmp_path)
    fixed = pytest.warns(SpecializationWarning, match=r"takes images of \d+ x \d+ pixels only")
    with fixed if name in _ONE_SIZE else contextlib.nullcontext():
        assert main(["export", str(source), "-o", str(tmp_path / "folder"), "--seed", "3"]) == 0
    loaded = load_source(source, seed=3)
    assert (type(loaded.model).__name__, loaded.task.name) == (name, CASES[name][0])
    head = Head(loaded.model, loaded.task)
    head.any_size &= name not in _ONE_SIZE
    session = coreai_onnx.session(tmp_path / "folder" / "model.onnx")
    assert [info.name for info in session.outputs] == head.output_names
    for batch, length in ((1, 9), (3, 16)):
        inputs = inputs_of(head, batch, length)
        with torch.no_grad():
            expected = head(inputs)
            if name in _IN_DOUBLE:
                exact = copy.deepcopy(head).double()
                doubles = [x.double() if x.is_floating_point() else x for x in inputs]
                expected = tuple(x.float() for x in exact(doubles))
        outputs = session.run(**dict(zip(head.input_names, inputs, strict=True)))
        for output, wanted in zip(head.output_names, expected, strict=True):
            if wanted.is_floating_point():
                wanted = wanted.float()
            assert_close(outputs[output], wanted)
