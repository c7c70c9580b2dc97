"""Folders, configurations and models to export; what is wrong with others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.sources import load_source, read_config, structure
from tests.support.huggingface_folders import BERT, llama, llama_folder
from tests.support.tolerances import assert_close


def test_a_folder(tmp_path: Path) -> None:
    model = llama_folder(tmp_path)
    loaded = load_source(tmp_path)
    assert (loaded.task.name, loaded.folder) == ("text-generation", tmp_path)
    assert_close(loaded.model.lm_head.weight, model.lm_head.weight)
    half = load_source(str(tmp_path), dtype=torch.float16).model
    assert half.lm_head.weight.dtype == torch.float16


def test_a_configuration_gets_random_weights_of_a_seed(tmp_path: Path) -> None:
    llama_folder(tmp_path)
    first, again, other = (
        load_source(tmp_path / "config.json", seed=seed).model.lm_head.weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_configuration_names_the_class(tmp_path: Path) -> None:
    """transformers' own choice for the encoder of a T5 is the whole T5."""
    config = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4
    )
    model = transformers.T5EncoderModel(config)
    model.save_pretrained(tmp_path)
    for source in (tmp_path, tmp_path / "config.json"):
        assert type(load_source(source).model) is transformers.T5EncoderModel


def test_numbers_of_classes_as_strings(tmp_path: Path) -> None:
    """The pipeline of zero-shot classification takes them as indices."""
    file = tmp_path / "config.json"
    content = {"model_type": "bert", "id2label": {"0": "contradiction", "1": "entailment"}}
    content["label2id"] = {"contradiction": "0", "entailment": "1"}
    file.write_text(json.dumps(content))
    assert read_config(file).label2id == {"contradiction": 0, "entailment": 1}
    content["label2id"]["entailment"] = "one"
    file.write_text(json.dumps(content))
    with pytest.raises(
        ModelSourceError, match=r"config.json: the configuration is not valid: .*one"
    ):
        read_config(file)


def test_a_model() -> None:
    loaded = load_source(llama())
    assert (loaded.task.name, loaded.folder) == ("text-generation", None)
    bert = transformers.BertModel(transformers.BertConfig(**BERT))
    assert load_source(bert).task.name == "feature-extraction"
    with pytest.raises(ModelSourceError, match="BertModel has no head for the task 'fill-mask'"):
        load_source(bert, "fill-mask")
    with pytest.raises(ModelSourceError, match=r"Linear is not a model(.|\n)*coreai_onnx.convert"):
        load_source(torch.nn.Linear(2, 2))


def test_a_given_model_stays_as_it_is() -> None:
    model = llama()
    before = model.lm_head.weight.clone()
    for dtype, rounded in ((torch.float16, None), (torch.float32, torch.bfloat16)):
        loaded = load_source(model, dtype=dtype, weights_dtype=rounded)
        assert loaded.model.dtype == dtype
        assert model.dtype == torch.float32
        assert torch.equal(model.lm_head.weight, before)
        wanted = before.to(rounded or dtype).to(dtype)
        assert torch.equal(loaded.model.lm_head.weight, wanted)
    assert load_source(model).model is model


def test_the_dtype_of_the_weights(tmp_path: Path) -> None:
    """Of a model, of a folder, of a configuration; float32 where nothing names one."""
    model = llama()
    assert load_source(model).weights_dtype == torch.float32
    model = model.bfloat16()
    loaded = load_source(model)
    assert (loaded.model.dtype, loaded.weights_dtype) == (torch.float32, torch.bfloat16)
    model.save_pretrained(tmp_path)
    for source in (tmp_path, tmp_path / "config.json"):
        loaded = load_source(source)
        assert (loaded.model.dtype, loaded.weights_dtype) == (torch.float32, torch.bfloat16)
    assert load_source(model, weights_dtype=torch.float32).weights_dtype == torch.float32
    _configured(dtype=None)(tmp_path)
    assert load_source(tmp_path / "config.json").weights_dtype == torch.float32


def test_weights_beyond_the_range_of_float16() -> None:
    model = llama()
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 1e5
    for dtypes in ({"dtype": torch.float16}, {"weights_dtype": torch.float16}):
        with pytest.raises(ModelSourceError, match=r"lm_head\.weight has values beyond the range"):
            load_source(model, **dtypes)
    load_source(model, weights_dtype=torch.bfloat16)


def _cut(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) // 2])

    return change


def _configured(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def _sharded(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors").rename(folder / "away")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _cut_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    llama().save_pretrained(folder, max_shard_size="100KB")
    _cut(sorted(folder.glob("model-*.safetensors"))[1].name)(folder)


def _cut_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(llama().state_dict(), folder / "pytorch_model.bin")
    _cut("pytorch_model.bin")(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "there is no config.json"),
        (_cut("config.json"), "is not JSON, or incomplete"),
        (lambda folder: (folder / "config.json").write_text("[]"), "has no model_type"),
        (_configured(model_type="gpt-17"), "does not know the architecture 'gpt-17'"),
        (_configured(architectures=["X"]), "names no architecture of a known task"),
        (
            _configured(architectures=["LlamaForMaskedLM"]),
            "no architecture of a known task .*LlamaForMaskedLM",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights(.|\n)*config.json"),
        (_cut("model.safetensors"), "download is incomplete: .*file not fully covered"),
        (_cut("tokenizer.json"), r"tokenizer\.json: is not JSON, or incomplete"),
        (_cut("generation_config.json"), r"generation_config\.json: is not JSON, or incomplete"),
        (_cut_shard, "model-00002-of-0.*download is incomplete: .*not fully covered"),
        (_cut_pickle, r"^cannot load \S+: .+$"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"abc"), "header too small"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "not a safetensors"),
        (_sharded, "model-00001-of-00002.safetensors is missing: the download is incomplete"),
    ],
)
def test_what_is_wrong_with_a_folder(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    llama_folder(tmp_path)
    change(tmp_path)
    with pytest.raises(ModelSourceError, match=message):
        load_source(tmp_path)


def test_a_task_that_the_model_has_no_head_for(tmp_path: Path) -> None:
    """transformers would give the head random weights."""
    transformers.BertModel(transformers.BertConfig(**BERT)).save_pretrained(tmp_path / "bert")
    for task in ("fill-mask", "question-answering", "text-generation"):
        message = rf"no weights .* a model for {task} has\n.*those of BertModel"
        with pytest.raises(ModelSourceError, match=message):
            load_source(tmp_path / "bert", task)
    with pytest.raises(ModelSourceError, match="no bert model with a head"):
        load_source(tmp_path / "bert", "image-classification")


def test_a_head_that_is_not_needed(tmp_path: Path) -> None:
    """The hidden state does not depend on the pooler, which a masked language model lacks."""
    masked = transformers.BertForMaskedLM(transformers.BertConfig(**BERT))
    masked.save_pretrained(tmp_path)
    assert load_source(tmp_path, "feature-extraction").task.name == "feature-extraction"


def test_weights_that_are_not_in_the_file(tmp_path: Path) -> None:
    llama_folder(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"], weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    message = r"no weights model\.layers\.1\.mlp\.up_proj\.weight, model\.norm\.weight"
    with pytest.raises(ModelSourceError, match=message):
        load_source(tmp_path)


def test_a_broken_index(tmp_path: Path) -> None:
    llama_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelSourceError, match="is not an index of weights"):
        load_source(tmp_path)


def test_nothing_is_downloaded() -> None:
    with pytest.raises(ModelSourceError, match=r"no such folder(.|\n)*nothing is downloaded"):
        load_source("google/gemma-7b")


def test_the_structure_needs_no_weights(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, dtype="bfloat16",
    )  # fmt: skip
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    text = structure(tmp_path / "config.json")
    count = sum(p.numel() for p in transformers.LlamaForCausalLM(config).parameters())
    assert text.startswith(f"LlamaForCausalLM: {count:,} parameters, ")
    (line,) = (line for line in text.splitlines() if "up_proj" in line)
    assert line.split() == ["model.layers.*.mlp.up_proj.weight", "[128,", "64]", "3", "24,576"]
