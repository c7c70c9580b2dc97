"""Encoders and classifiers: their inputs and outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.heads import Head
from coreai_onnx.huggingface.tasks import TASKS
from tests.huggingface_folders import BERT

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


def test_a_model_without_the_head() -> None:
    with pytest.raises(ModelSourceError, match="BertModel has no start_logits and no end_logits"):
        Head(model("BertModel", **BERT), TASKS["question-answering"])
