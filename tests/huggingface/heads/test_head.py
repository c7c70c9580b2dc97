"""Encoders and classifiers: their inputs and outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.heads.head import Head
from coreai_onnx.huggingface.heads.tasks import TASKS
from tests.support.huggingface_folders import BERT

VIT: dict[str, Any] = {
    **{name: size for name, size in BERT.items() if name != "vocab_size"},
    "image_size": 16,
    "patch_size": 8,
}


def model(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    return cls(cls.config_class(**settings)).eval()


@pytest.mark.parametrize(
    ("name", "task", "outputs"),
    [
        ("BertModel", "feature-extraction", ["last_hidden_state"]),
        ("BertForMaskedLM", "fill-mask", ["logits"]),
        ("BertForQuestionAnswering", "question-answering", ["start_logits", "end_logits"]),
    ],
)
def test_names_of_a_text_model(name: str, task: str, outputs: list[str]) -> None:
    head = Head(model(name, **BERT), TASKS[task])
    assert head.input_names == ["input_ids", "attention_mask", "token_type_ids"]
    assert head.output_names == outputs


def test_a_text_model_without_segments() -> None:
    head = Head(model("BertModel", **BERT, type_vocab_size=1), TASKS["feature-extraction"])
    assert head.input_names == ["input_ids", "attention_mask"]


def test_names_of_an_image_model() -> None:
    head = Head(model("ViTForImageClassification", **VIT), TASKS["image-classification"])
    assert (head.input_names, head.output_names) == (["pixel_values"], ["logits"])
    assert head.example(torch.float32)[0][0].shape == (2, 3, 16, 16)


CLIP: dict[str, Any] = {
    "projection_dim": 16,
    "text_config": {**BERT, "hidden_size": 32, "eos_token_id": 2},
    "vision_config": {**{n: x for n, x in VIT.items() if n != "max_position_embeddings"}},
}


@pytest.mark.parametrize(("name", "mask"), [("CLIPModel", True), ("SiglipModel", False)])
def test_a_model_of_texts_and_images(name: str, mask: bool) -> None:
    settings = {key: x for key, x in CLIP.items() if mask or key != "projection_dim"}
    head = Head(model(name, **settings), TASKS["zero-shot-image-classification"])
    assert head.input_names[:2] == ["input_ids", "pixel_values"]
    similarities = ["logits_per_image", "logits_per_text"]
    assert head.output_names == [*similarities, "text_embeds", "image_embeds"]
    dims = dict(zip(head.input_names, head.dynamic_shapes()[0], strict=True))
    batch, length = dims["input_ids"].values()
    assert (batch, length.__name__) == ("text_batch_size", "sequence_length")
    assert length.max == head.model.config.text_config.max_position_embeddings
    assert dims["pixel_values"] == {0: "image_batch_size"}


def test_features_of_images() -> None:
    head = Head(model("ViTModel", **VIT), TASKS["feature-extraction"])
    assert (head.input_names, head.output_names) == (["pixel_values"], ["last_hidden_state"])


def test_a_model_that_needs_other_inputs() -> None:
    """SigLIP 2 takes patches and the shapes of the images."""
    vision = {name: size for name, size in CLIP["vision_config"].items() if name != "image_size"}
    siglip = model("Siglip2Model", text_config=CLIP["text_config"], vision_config=vision)
    with pytest.raises(ModelSourceError, match="Siglip2Model does not run with input_ids, pixel_v"):
        Head(siglip, TASKS["zero-shot-image-classification"])


def test_a_model_without_the_head() -> None:
    with pytest.raises(ModelSourceError, match="BertModel has no start_logits and no end_logits"):
        Head(model("BertModel", **BERT), TASKS["question-answering"])
