"""Sentence embeddings and their pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import coreai_onnx
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.heads.sentences import Normalization, Pooling, SentenceHead, modules_of
from coreai_onnx.huggingface.heads.tasks import TASKS
from tests.huggingface.heads.test_head import model
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


def modules(folder: Path | None, task: str = "sentence-similarity") -> list[str]:
    return [type(module).__name__ for module in modules_of(folder, TASKS[task])]


def test_modules_of_folders(tmp_path: Path) -> None:
    mean = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    names = ("Transformer", "Pooling", "Normalize")
    assert modules(folder_of(tmp_path / "a", mean, *names)) == ["Pooling", "Normalization"]
    assert modules(tmp_path) == modules(None) == ["Pooling"]
    assert modules(None, "sparse-embedding") == ["SparsePooling"]


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": "max"}, "max"),
    ],
)
def test_modes_of_old_and_new_files(settings: dict[str, Any], mode: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder", settings, "Transformer", "Pooling")
    (pooling,) = modules_of(folder, TASKS["sentence-similarity"])
    assert isinstance(pooling, Pooling)
    assert pooling.mode == mode


@pytest.mark.parametrize(
    ("modes", "names", "message"),
    [
        ({"pooling_mode_lasttoken": True}, ("Pooling",), "the pooling 'lasttoken' is not supp"),
        ({"pooling_mode": ["mean", "cls"]}, ("Pooling",), "is not supported"),
        ({"pooling_mode": "mean"}, ("Pooling", "LSTM"), "cannot read .*modules.json"),
        ({"pooling_mode": "mean"}, ("Pooling", "Dense"), "cannot read .*modules.json"),
    ],
)
def test_modules_that_are_refused(
    modes: dict[str, bool], names: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelSourceError, match=message):
        modules(folder_of(tmp_path / "folder", modes, *names))


def test_late_interaction_needs_a_projection() -> None:
    with pytest.raises(ModelSourceError, match="late interaction needs a folder"):
        modules(None, "late-interaction")


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalizes", [False, True])
def test_results(mode: str, normalizes: bool) -> None:
    bert: Any = model("BertModel", **BERT, type_vocab_size=1)
    steps = [Pooling(mode), *([Normalization()] if normalizes else [])]
    head = SentenceHead(bert, TASKS["sentence-similarity"], steps)
    with torch.no_grad():
        tokens, sentences = head([IDS, MASK])
        hidden = bert(input_ids=IDS, attention_mask=MASK).last_hidden_state
    rows = {
        "mean": [hidden[0].mean(0), hidden[1, :2].mean(0)],
        "max": [hidden[0].amax(0), hidden[1, :2].amax(0)],
        "cls": [hidden[0, 0], hidden[1, 0]],
    }
    wanted = torch.stack(rows[mode])
    if normalizes:
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
    assert_close(tokens, hidden)
    assert_close(sentences, wanted)


def test_a_sparse_embedding(tmp_path: Path) -> None:
    """SPLADE: the largest log(1 + relu) of the tokens that are not padding, for each word."""
    bert: Any = model("BertForMaskedLM", **BERT, type_vocab_size=1)
    source = folder_of(tmp_path / "source", {}, "MLMTransformer", "SpladePooling")
    (source / "1_SpladePooling").mkdir()
    (source / "1_SpladePooling" / "config.json").write_text('{"pooling_strategy": "max"}')
    bert.save_pretrained(source)
    exported = export_model(source, tmp_path / "folder")
    assert exported.task == "sparse-embedding"
    session = coreai_onnx.session(exported.path / "model.onnx")
    (weights,) = session.run(IDS, MASK).values()
    with torch.no_grad():
        logits = bert(input_ids=IDS, attention_mask=MASK).logits
    scores = torch.log(1 + logits.clamp(min=0))
    assert_close(weights[0], scores[0].amax(0))
    assert_close(weights[1], scores[1, :2].amax(0))


@pytest.mark.parametrize("package", ["pylate.models", "sentence_transformers.models"])
def test_late_interaction(package: str, tmp_path: Path) -> None:
    """ColBERT: a projection of each token, of length 1."""
    bert: Any = model("BertModel", **BERT, type_vocab_size=1)
    names = ["Transformer", "Dense", *(["Normalize"] if package.startswith("sent") else [])]
    source = tmp_path / "source"
    bert.save_pretrained(source)
    listed = [{"type": f"{package}.{name}", "path": f"1_{name}"} for name in names]
    (source / "modules.json").write_text(json.dumps(listed))
    for name in names[1:]:
        (source / f"1_{name}").mkdir()
        settings = {"module_input_name": "token_embeddings"} if name == "Normalize" else {
            "activation_function": "torch.nn.modules.linear.Identity", "bias": False,
        }  # fmt: skip
        (source / f"1_{name}" / "config.json").write_text(json.dumps(settings))
    weight = torch.randn(8, 32)
    save_file({"linear.weight": weight}, source / "1_Dense" / "model.safetensors")
    exported = export_model(source, tmp_path / "folder")
    assert exported.task == "late-interaction"
    (tokens,) = coreai_onnx.session(exported.path / "model.onnx").run(IDS, MASK).values()
    with torch.no_grad():
        projected = bert(input_ids=IDS, attention_mask=MASK).last_hidden_state @ weight.T
    assert_close(tokens, projected / projected.norm(dim=-1, keepdim=True))


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
