"""Sentence embeddings and their pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.sentences import Pooling, SentenceHead, pooling_of
from coreai_onnx.huggingface.tasks import TASKS
from tests.huggingface.test_heads import model
from tests.support.huggingface_folders import BERT, tokenizer
from tests.support.tolerances import assert_close

IDS = torch.tensor([[5, 9, 7, 3], [4, 8, 0, 0]])
MASK = (IDS != 0).long()


def folder_of(folder: Path, modes: dict[str, bool], *names: str) -> Path:
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": f"1_{name}"} for name in names
    ]
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"dimension": 32} | modes))
    return folder


def test_pooling_of_folders(tmp_path: Path) -> None:
    mean = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    names = ("Transformer", "Pooling", "Normalize")
    assert pooling_of(folder_of(tmp_path / "a", mean, *names)) == Pooling("mean", normalizes=True)
    first = {"pooling_mode_cls_token": True}
    assert pooling_of(folder_of(tmp_path / "b", first, *names[:2])) == Pooling("cls")
    assert pooling_of(tmp_path) == pooling_of(None) == Pooling()


@pytest.mark.parametrize(
    ("modes", "names", "message"),
    [
        ({"pooling_mode_max_tokens": True}, ("Pooling",), "pooling .'max_tokens'. is not supp"),
        ({}, ("Pooling", "Dense"), "the module Dense is not supported"),
        ({}, ("Transformer",), "cannot read .*modules.json"),
    ],
)
def test_pooling_that_is_refused(
    modes: dict[str, bool], names: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelSourceError, match=message):
        pooling_of(folder_of(tmp_path / "folder", modes, *names))


@pytest.mark.parametrize(
    "pooling", [Pooling("mean"), Pooling("cls"), Pooling("mean", normalizes=True)]
)
def test_results(pooling: Pooling) -> None:
    bert: Any = model("BertModel", **BERT, type_vocab_size=1)
    head = SentenceHead(bert, TASKS["sentence-similarity"], pooling)
    with torch.no_grad():
        tokens, sentences = head([IDS, MASK])
        hidden = bert(input_ids=IDS, attention_mask=MASK).last_hidden_state
    rows = [hidden[0].mean(0), hidden[1, :2].mean(0)]
    wanted = torch.stack(rows) if pooling.mode == "mean" else hidden[:, 0]
    if pooling.normalizes:
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
    assert_close(tokens, hidden)
    assert_close(sentences, wanted)


def test_a_folder_of_sentence_transformers(tmp_path: Path) -> None:
    source = folder_of(
        tmp_path / "source", {"pooling_mode_mean_tokens": True}, "Transformer", "Pooling"
    )
    bert = model("BertModel", **BERT)
    bert.save_pretrained(source)
    tokenizer().save_pretrained(source)
    exported = export_model(source, tmp_path / "folder")
    assert exported.task == "sentence-similarity"
    session = coreai_onnx.session(exported.path / "model.onnx")
    outputs = session.run(IDS, MASK, torch.zeros_like(IDS))
    with torch.no_grad():
        hidden = bert(input_ids=IDS, attention_mask=MASK).last_hidden_state
    assert_close(outputs["sentence_embedding"][1], hidden[1, :2].mean(0))
