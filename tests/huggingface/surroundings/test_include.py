"""Exports with a tokenizer, an image processor and boxes in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import coreai_onnx
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface import export_model
from tests.huggingface.surroundings import small_tokenizers as small
from tests.support.huggingface_folders import BERT, llama_folder
from tests.support.tolerances import assert_close

THRESHOLD = 0.2001
"""Of random weights with five classes."""
TEXTS = ["Hello, wörld!", "", "a much longer text: 1,000 [MASK] 你好"]


def bert_folder(folder: Path) -> tuple[Any, Any]:
    tokenizer = small.bert()
    torch.manual_seed(0)
    config = transformers.BertConfig(**(BERT | {"vocab_size": len(tokenizer)}))
    model = transformers.BertModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.slow
def test_sentences(tmp_path: Path) -> None:
    model, tokenizer = bert_folder(tmp_path / "bert")
    exported = export_model(
        tmp_path / "bert", tmp_path / "out", include=["tokenizer", "pooling"], external_data=True
    )
    assert (tmp_path / "out" / "model.onnx.data").is_file()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        tokens = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    expected = (tokens * mask).sum(1) / mask.sum(1)
    feeds = {"text": np.array(TEXTS, object)}
    file = tmp_path / "out" / "model.onnx"
    stock = onnxruntime.InferenceSession(file)
    assert [value.name for value in stock.get_inputs()] == ["text"]
    assert_close(stock.run(["sentence_embedding"], feeds)[0], expected)
    program = coreai_onnx.OnnxProgram.load(file)
    assert program.composites() == exported.program.composites()
    assert "ai.coreai::scaled_dot_product_attention" in program.composites()
    for target, kernels in (("kernels", True), ("contrib", False)):
        program = coreai_onnx.OnnxProgram.load(file).optimize(target=target)
        session = coreai_onnx.session(program, kernels=kernels)
        assert_close(session.ort.run(["sentence_embedding"], feeds)[0], expected)


@pytest.mark.slow
def test_a_detector(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.YolosConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        image_size=[32, 48], patch_size=16, num_detection_tokens=9, num_labels=4,
    )  # fmt: skip
    model = transformers.YolosForObjectDetection(config).eval()
    model.save_pretrained(tmp_path / "yolos")
    processor = ViTImageProcessorPil(size={"height": 32, "width": 48})
    processor.save_pretrained(tmp_path / "yolos")
    parts = ["image_processor", "nms"]
    export_model(tmp_path / "yolos", tmp_path / "out", include=parts)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    assert [value.name for value in session.get_inputs()] == ["image", "threshold"]
    images = np.random.default_rng(0).integers(0, 256, (2, 60, 90, 3)).astype(np.uint8)
    threshold = np.array([THRESHOLD], np.float32)
    scores, _, boxes, batch = session.run(None, {"image": images, "threshold": threshold})
    with torch.no_grad():
        outputs = model(**processor(list(images), return_tensors="pt"))
    probabilities = outputs.logits.softmax(-1)[..., :-1].max(-1).values
    assert len(scores) == (probabilities > THRESHOLD).sum() > 0
    assert_close(scores, probabilities[probabilities > THRESHOLD])
    assert boxes.shape == (len(scores), 4)
    assert (np.diff(batch) >= 0).all()


@pytest.mark.parametrize(
    ("include", "task", "message"),
    [
        ("tokenizer", None, r"must be a list of names, as \['tokenizer'\]"),
        (["tokens"], None, "include 'tokens' must be one of tokenizer, image_processor"),
        (["image_decoder"], None, '"image_decoder" needs "image_processor"'),
        (["pooling"], "fill-mask", "is for sentence embeddings, not for fill-mask"),
        (["image_processor"], None, "takes no pixel_values, which include 'image_processor'"),
        (["cross_attentions"], None, "'cross_attentions' is for speech models with a decoder"),
        (["nms"], None, '"nms" is for object-detection, not feature-extraction'),
    ],
)
def test_what_is_refused(include: Any, task: str | None, message: str, tmp_path: Path) -> None:
    bert_folder(tmp_path / "bert")
    with pytest.raises(ModelSourceError, match=message):
        export_model(
            tmp_path / "bert", tmp_path / "out", include=include, task=task or "feature-extraction"
        )
    assert not (tmp_path / "out").exists()


def test_a_decoder_and_a_missing_tokenizer(tmp_path: Path) -> None:
    llama_folder(tmp_path / "llama")
    with pytest.raises(ModelSourceError, match="include is for models that run once"):
        export_model(tmp_path / "llama", tmp_path / "out", include=["tokenizer"])
    bert_folder(tmp_path / "bert")
    for file in (tmp_path / "bert").glob("*token*"):
        file.unlink()
    with pytest.raises(ModelSourceError, match="has no tokenizer"):
        export_model(tmp_path / "bert", tmp_path / "out", include=["tokenizer"])
    assert not (tmp_path / "out").exists()
