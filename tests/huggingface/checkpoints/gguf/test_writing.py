"""GGUF files of exported folders: the tensors that were read, and the values of the quantizer's."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter

from coreai_onnx.errors import ModelSourceError, SaveError
from coreai_onnx.huggingface.checkpoints.gguf.codebooks import CODEBOOKS
from coreai_onnx.huggingface.checkpoints.gguf.writing import GgufTensor, write_gguf
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.generation.decoding import logits_of
from coreai_onnx.huggingface.sources import load_source, read_config
from coreai_onnx.runtime.sessions.session import Session
from tests.huggingface.checkpoints.gguf.files import (
    CHOSEN,
    EXPERTS,
    HEAD,
    MIXTURES,
    TOKENS,
    write_model,
)
from tests.support.tolerances import assert_close

export = functools.partial(export_model, check=False, target="kernels")


def to_gguf(folder: Path, target: Path, **options: object) -> list[GgufTensor]:
    config = read_config(folder / "config.json")
    return write_gguf(folder / "model.onnx", config, target, **options)  # type: ignore[arg-type]


def content_of(path: Path) -> dict[str, tuple[Type, list[int], bytes]]:
    tensors = GGUFReader(path).tensors
    return {t.name: (t.tensor_type, t.shape.tolist(), t.data.tobytes()) for t in tensors}


KINDS = (Type.Q4_K, Type.Q8_0, Type.Q5_0, Type.Q6_K, Type.Q4_1)


@pytest.mark.parametrize(
    ("architecture", "kinds"),
    [("llama", KINDS), ("gemma3", KINDS), ("llama", (Type.MXFP4, *CODEBOOKS)),
     ("gemma3", tuple(CODEBOOKS))],
    ids=["llama", "gemma3", "llama in blocks", "gemma3 in blocks"],
)  # fmt: skip
def test_tensors_are_those_that_were_read(
    architecture: str, kinds: tuple[Type, ...], tmp_path: Path
) -> None:
    """Of Llama, rows are in another order; of Gemma, norms are stored as 1 more."""
    before, after = tmp_path / "before.gguf", tmp_path / "after.gguf"
    # Its two layers have sliding attention, whose positions llama.cpp does not scale.
    factor = None if architecture == "gemma3" else 4.0
    write_model(before, architecture, kinds, factor)
    to_gguf(export(before, tmp_path / "folder").path, after)
    assert content_of(after) == content_of(before)
    reader = GGUFReader(after)
    values = {name: field.contents() for name, field in reader.fields.items()}
    assert values["general.architecture"] == architecture
    assert values[f"{architecture}.attention.key_length"] == HEAD
    assert values.get(f"{architecture}.rope.scaling.factor") == factor
    assert values.get(f"{architecture}.rope.scaling.type") == (factor and "linear")
    assert values["tokenizer.ggml.tokens"][: len(TOKENS)] == TOKENS
    assert values["tokenizer.ggml.eos_token_id"] == TOKENS.index("</s>")
    assert values["tokenizer.chat_template"].startswith("{% for m in messages %}")
    if architecture == "llama":
        assert values["tokenizer.ggml.merges"] == ["a b", "c d", "e f"]


@pytest.mark.parametrize("kinds", [KINDS, (Type.F32,), (Type.IQ2_S,)], ids=str)
@pytest.mark.parametrize("architecture", MIXTURES)
def test_experts_are_those_that_were_read(
    architecture: str, kinds: tuple[Type, ...], tmp_path: Path
) -> None:
    before, after = tmp_path / "before.gguf", tmp_path / "after.gguf"
    write_model(before, architecture, kinds, experts=True)
    to_gguf(export(before, tmp_path / "folder").path, after)
    assert content_of(after) == content_of(before)
    fields = GGUFReader(after).fields
    values = {name: field.contents() for name, field in fields.items()}
    assert values[f"{architecture}.expert_count"] == EXPERTS
    assert values[f"{architecture}.expert_used_count"] == CHOSEN


@torch.no_grad()
@pytest.mark.parametrize("architecture", MIXTURES)
def test_experts_of_the_quantizer_are_those_of_the_file(architecture: str, tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", architecture, (Type.F32,), experts=True)
    rules = {"bits": 4, "symmetric": True, "group_size": 32}
    folder = export(tmp_path / "tiny.gguf", tmp_path / "folder", quantization=rules).path
    path = tmp_path / "quantized.gguf"
    kinds = {tensor.name: tensor.type for tensor in to_gguf(folder, path)}
    assert {kinds[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up", "down")} == {
        Type.Q4_0
    }
    ids = torch.tensor([[1, 5, 9, 2]])
    logits = load_source(path).model(ids, use_cache=False).logits
    assert_close(logits_of(Session(folder / "model.onnx"), ids)[:, -1:], logits[:, -1:])


def test_experts_that_llama_cpp_weights_in_another_way(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "qwen3moe", (Type.F32,), experts=True)
    folder = export(tmp_path / "tiny.gguf", tmp_path / "folder").path
    config = folder / "config.json"
    for old, new, message in (
        ('"norm_topk_prob": true', '"norm_topk_prob": false', "norm_topk_prob is False"),
        ('"decoder_sparse_step": 1', '"decoder_sparse_step": 2', "some of its layers have no"),
    ):
        content = config.read_text()
        assert old in content
        config.write_text(content.replace(old, new))
        with pytest.raises(ModelSourceError, match=message):
            to_gguf(folder, tmp_path / "new.gguf")
        config.write_text(content)
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        if node.op_type.startswith("gather_mm"):
            node.name = "elsewhere"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(ModelSourceError, match=r"no node has the weight .*experts.gate_up_proj"):
        to_gguf(folder, tmp_path / "new.gguf")
    assert not (tmp_path / "new.gguf").exists()


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Qwen 2 with biases, in 4 bits with zero points, the head in 8."""
    root = tmp_path_factory.mktemp("quantized")
    write_model(root / "tiny.gguf", "qwen2", (Type.F32,))
    rules = {"bits": 4, "rules": {"*lm_head*": {"bits": 8, "symmetric": True}}}
    return export(root / "tiny.gguf", root / "folder", quantization=rules).path


@torch.no_grad()
def test_weights_of_the_quantizer_are_those_of_the_file(quantized: Path, tmp_path: Path) -> None:
    path = tmp_path / "quantized.gguf"
    kinds = {tensor.name: tensor.type for tensor in to_gguf(quantized, path)}
    assert kinds["output.weight"] == Type.Q8_0
    assert kinds["blk.0.attn_q.bias"] == Type.F32
    assert kinds["blk.1.ffn_down.weight"] == Type.Q5_0
    ids = np.array([[1, 5, 9, 2]])
    past = {f"past_key_values.{i}.{x}": np.zeros((1, 2, 0, HEAD), np.float32)
            for i in (0, 1) for x in ("key", "value")}  # fmt: skip
    feeds = {"attention_mask": np.ones_like(ids), "position_ids": np.arange(4)[None]} | past
    expected = Session(quantized / "model.onnx").stream().run(input_ids=ids, **feeds)["logits"]
    logits = load_source(path).model(torch.from_numpy(ids), use_cache=False).logits
    assert_close(logits[:, -1:], torch.from_numpy(expected[:, -1:]))
    rounded = to_gguf(quantized, path, round_minimums=True)
    assert {tensor.type for tensor in rounded} == {Type.F32, Type.Q4_1, Type.Q8_0}


def test_what_does_not_fit_is_refused_or_dequantized(quantized: Path, tmp_path: Path) -> None:
    model = onnx.load(quantized / "model.onnx")
    scales = next(i for i in model.graph.initializer if i.name.endswith("o_proj.weight.scales"))
    wide = np.frombuffer(scales.raw_data, np.float16).astype(np.float32) * 1.001
    scales.CopyFrom(onnx.numpy_helper.from_array(wide.reshape(scales.dims), scales.name))
    for file in quantized.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    onnx.save(model, tmp_path / "model.onnx")
    path = tmp_path / "model.gguf"
    with pytest.raises(ModelSourceError, match=r"no type .*self_attn.o_proj.weight: 4 bits in gr"):
        to_gguf(tmp_path, path)
    assert not path.exists()
    kinds = {tensor.name: tensor.type for tensor in to_gguf(tmp_path, path, otherwise="float16")}
    assert [name for name, kind in kinds.items() if kind == Type.F16] == [
        "blk.0.attn_output.weight"
    ]


def test_a_file_appears_complete_or_not_at_all(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: GGUFWriter) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "model.gguf"
    path.write_text("older")
    monkeypatch.setattr(GGUFWriter, "write_ti_data_to_file", fail)
    with pytest.raises(SaveError, match=r"cannot write .*model.gguf: .*No space left"):
        to_gguf(quantized, path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]
    assert path.read_text() == "older"
    monkeypatch.undo()
    with pytest.raises(SaveError, match=r"cannot write .*No such file"):
        to_gguf(quantized, tmp_path / "no" / "model.gguf")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gpt2", {}, "gpt2 cannot be written as GGUF"),
        ("llama", {"hidden_act": "relu"}, "its activation is relu"),
        ("mistral", {"sliding_window": 64}, "it has sliding attention"),
        ("gemma3_text", {"query_pre_attn_scalar": 100}, "query_pre_attn_scalar is 100, not 256"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 26}, "its layers are not 5 of"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30"),
        ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
         "scaled by yarn"),
    ],
)  # fmt: skip
def test_what_llama_cpp_computes_otherwise_is_refused(
    kind: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    config = transformers.CONFIG_MAPPING[kind](**changes)
    with pytest.raises(ModelSourceError, match=message):
        write_gguf(tmp_path / "model.onnx", config, tmp_path / "model.gguf")
