"""Tasks, given by name or read from a configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.heads.tasks import ALIASES, TASKS, task_of


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("LlamaForCausalLM", "text-generation"),
        ("GPT2LMHeadModel", "text-generation"),
        ("BertForMaskedLM", "fill-mask"),
        ("BertForQuestionAnswering", "question-answering"),
        ("ViTForImageClassification", "image-classification"),
        ("BertModel", "feature-extraction"),
        ("MarianMTModel", "text2text-generation"),
        ("Wav2Vec2ForCTC", "automatic-speech-recognition"),
        ("Siglip2Model", "zero-shot-image-classification"),
        ("YolosForObjectDetection", "object-detection"),
        ("Wav2Vec2ForSequenceClassification", "audio-classification"),
        ("LayoutLMv3ForQuestionAnswering", "document-question-answering"),
        ("Mask2FormerForUniversalSegmentation", "image-segmentation"),
        ("MaskFormerForInstanceSegmentation", "image-segmentation"),
        ("ClapModel", "zero-shot-audio-classification"),
        ("OwlViTForObjectDetection", "zero-shot-object-detection"),
        ("PatchTSTForPrediction", "time-series-prediction"),
    ],
)
def test_the_task_of_an_architecture(architecture: str, task: str) -> None:
    assert task_of(SimpleNamespace(architectures=[architecture]), None).name == task


@pytest.mark.parametrize("architectures", [None, [], ["T5ForSomethingElse"]])
def test_a_configuration_without_a_known_task(architectures: Any) -> None:
    config = SimpleNamespace(architectures=architectures)
    with pytest.raises(ModelSourceError, match=r"no architecture of a known task(.|\n)*fill-mask"):
        task_of(config, None)
    assert task_of(config, "fill-mask").name == "fill-mask"


def test_one_task_for_two_kinds_of_heads() -> None:
    """A speech model with a decoder, or one with a class for each frame."""
    name = "automatic-speech-recognition"
    config = SimpleNamespace(architectures=["Wav2Vec2ForCTC"])
    assert task_of(config, name).auto_class == "AutoModelForCTC"
    config = SimpleNamespace(architectures=["WhisperForConditionalGeneration"])
    assert task_of(config, name).auto_class == TASKS[name].auto_class == "AutoModelForSpeechSeq2Seq"


@pytest.mark.parametrize(("pipeline", "task"), ALIASES.items())
def test_a_pipeline_with_the_models_of_another_task(pipeline: str, task: str) -> None:
    assert task_of(SimpleNamespace(architectures=None), pipeline) is TASKS[task]


def test_an_unknown_task() -> None:
    with pytest.raises(ModelSourceError, match="no task 'chess'; there are image-text-to-text"):
        task_of(SimpleNamespace(architectures=None), "chess")


def test_transformers_has_the_classes() -> None:
    assert all(hasattr(transformers, task.auto_class) for task in TASKS.values())
