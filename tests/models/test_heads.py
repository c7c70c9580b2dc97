"""Encoders, classifiers and detectors as exported folders, from the command line.

The configurations have random weights. `docs/language_models.md` lists the architectures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.cli import main
from coreai_onnx.huggingface.heads import Head
from coreai_onnx.huggingface.sources import load_source
from tests.huggingface.test_heads import VIT
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
CASES: dict[str, tuple[str, dict[str, Any]]] = {
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


def config_file(name: str, folder: Path) -> Path:
    settings = dict(CASES[name][1])
    if settings.get("use_timm_backbone") is False:
        settings["backbone_config"] = transformers.ResNetConfig(**_STAGES)
    config = getattr(transformers, name).config_class(**settings)
    config.architectures = [name]
    config.save_pretrained(folder)
    return folder / "config.json"


def inputs_of(head: Head, batch: int, length: int) -> list[torch.Tensor]:
    """Return random inputs; the last tokens of the first text are padding."""
    torch.manual_seed(batch)
    found = []
    for name, example in zip(head.input_names, head.example(torch.float32)[0], strict=True):
        if name == "input_values":
            found.append(torch.randn(batch, 400 * length))
        elif example.is_floating_point():
            found.append(torch.randn(batch, *example.shape[1:]))
        elif name == "attention_mask":
            mask = torch.ones(batch, length, dtype=torch.int64)
            mask[0, length - 1 :] = 0
            found.append(mask)
        else:
            high = 2 if name == "token_type_ids" else 250
            found.append(torch.randint(0, high, (batch, length)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_configuration_from_the_command_line(name: str, tmp_path: Path) -> None:
    """The task is read from the configuration; batch and length are dynamic."""
    source = config_file(name, tmp_path)
    assert main(["export", str(source), "-o", str(tmp_path / "folder"), "--seed", "3"]) == 0
    loaded = load_source(source, seed=3)
    assert (type(loaded.model).__name__, loaded.task.name) == (name, CASES[name][0])
    head = Head(loaded.model, loaded.task)
    session = coreai_onnx.session(tmp_path / "folder" / "model.onnx")
    assert [info.name for info in session.outputs] == list(loaded.task.outputs)
    for batch, length in ((1, 9), (3, 16)):
        inputs = inputs_of(head, batch, length)
        with torch.no_grad():
            expected = head(inputs)
        outputs = session.run(**dict(zip(head.input_names, inputs, strict=True)))
        for output, wanted in zip(head.output_names, expected, strict=True):
            assert_close(outputs[output], wanted)
