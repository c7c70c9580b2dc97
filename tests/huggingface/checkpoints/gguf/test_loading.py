"""Language models from GGUF files, against those that transformers dequantizes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.gguf.header import read_header
from coreai_onnx.huggingface.checkpoints.gguf.loading import PackedEmbedding, read_config
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.sources import load_source
from coreai_onnx.huggingface.transformers_names import load_gguf_checkpoint
from coreai_onnx.model.files import mapped_tensors
from coreai_onnx.runtime.sessions.session import Session
from tests.huggingface.checkpoints.gguf.files import CONFIGS, TOKENS, write_model
from tests.support.tolerances import assert_close

IDS = torch.tensor([[1, 5, 9, 2, 26, 7]])


def dequantized_model(path: Path) -> transformers.PreTrainedModel:
    """Return the model with the weights that transformers dequantizes."""
    model = transformers.AutoModelForCausalLM.from_config(read_config(path))
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model.eval()


@pytest.mark.parametrize("architecture", CONFIGS)
@torch.no_grad()
def test_logits_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(path, architecture)
    loaded = load_source(path)
    packed = [m for m in loaded.model.modules() if isinstance(m, PackedLinear)]
    assert len(packed) == 2 * 7 + 1
    assert sum(isinstance(m, PackedEmbedding) for m in loaded.model.modules()) == 1
    assert_close(loaded.model(IDS).logits, dequantized_model(path)(IDS).logits)


@torch.no_grad()
def test_an_exported_folder_continues_as_transformers_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_tensors, "LARGE", 1 << 10)  # codes wait in the scratch file
    path, folder = tmp_path / "tiny.gguf", tmp_path / "folder"
    write_model(path, "llama", (Type.Q4_K, Type.Q6_K))
    exported = export_model(path, folder)
    stored = sum(file.stat().st_size for file in folder.glob("model.onnx*"))
    # The graph and its functions take more than a few percent of so small a model.
    assert exported.program.composites()["ai.coreai::linear_nbits.minimums_scales6"] == 7
    assert stored < path.stat().st_size * 1.05 + 400_000
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("abcx")["input_ids"][-3:] == [TOKENS.index(t) for t in ("ab", "c", "x")]
    assert tokenizer.chat_template.startswith("{% for m in messages %}")
    model = dequantized_model(path)
    expected = model.generate(IDS, max_new_tokens=8, do_sample=False, eos_token_id=-1)
    ids = IDS
    session = Session(folder / "model.onnx")
    for _ in range(8):
        positions, past = np.arange(ids.shape[1])[None], np.zeros((1, 2, 0, 64), np.float32)
        feeds = {"input_ids": ids.numpy(), "attention_mask": np.ones(ids.shape, np.int64)}
        feeds |= {"position_ids": positions}
        feeds |= {f"past_key_values.{i}.{x}": past for i in (0, 1) for x in ("key", "value")}
        logits = session.stream().run(**feeds)["logits"]
        ids = torch.cat([ids, torch.tensor(logits[:, -1:].argmax(-1))], -1)
    assert ids.tolist() == expected.tolist()


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_model(path, "qwen3", (Type.Q4_0,))
    return path


def damaged(source: Path, target: Path, old: bytes, new: bytes) -> Path:
    data = source.read_bytes()
    assert old in data
    target.write_bytes(data.replace(old, new, 1))
    return target


HUGE = struct.pack("<Q", 1 << 60)
NAME = b"blk.0.attn_q.weight"
NORM = b"blk.0.attn_norm.weight" + struct.pack("<IQ", 1, 256)
DIMS = struct.pack("<IQQ", 2, 256, 256)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"GGUF\x03", b"GGUX\x03", "is not a GGUF file"),
        (b"GGUF\x03\0\0\0", b"GGUF\0\0\0\x03", "GGUF version 50331648 is not supported"),
        (struct.pack("<Q", len(TOKENS)), HUGE, r"elements in an array, at most 4,194,304"),
        (b"GGUF\x03\0\0\0", b"GGUF\x03\0\0\0" + HUGE * 2, r"606,846,976 tensors, at most 1,048"),
        (NAME + DIMS, NAME + struct.pack("<IQQ", 2, 256, 1 << 62), "ends at byte"),
        (NAME + DIMS, NAME + struct.pack("<IQQ", 2, 250, 256), "250 columns in blocks of 32"),
        (NAME + DIMS, NAME + struct.pack("<IQQ", 9, 256, 256), "has 9 dims"),
        (NAME + DIMS, b"blk.0.attn_k.weight" + DIMS, "'blk.0.attn_k.weight' occurs twice"),
        (NAME + DIMS + b"\2\0\0\0", NAME + DIMS + b"\xc8\0\0\0", "has the type 200"),
        (NORM + bytes(4), NORM + b"\x1a\0\0\0", "has the type I32, which is not supported"),
        (NAME, b"blk.0.attn_r.weight", "has no tensor for model.layers.0.self_attn.q_"),
        (b"blk.0.attn_output.weight", b"blk.0.ffn_a_exps.weight.", "mixtures of experts are not"),
        (b"qwen3.block_count\4\0\0\0\2", b"qwen3.block_count\4\0\0\0\1", "has 1 layers, the ten"),
        (b"architecture\x08\0\0\0\x05\0\0\0\0\0\0\0qwen3",
         b"architecture\x08\0\0\0\x05\0\0\0\0\0\0\0qwen9", "does not read 'qwen9'"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_an_error(
    model_file: Path, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    path = damaged(model_file, tmp_path / "damaged.gguf", old, new)
    with pytest.raises(ModelSourceError, match=message) as error:
        load_source(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("size", [0, 3, 20, 300, 3000, 100_000])
def test_a_file_that_was_cut_off_is_an_error(model_file: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(model_file.read_bytes()[:size])
    with pytest.raises(ModelSourceError, match=r"not a GGUF|incomplete|cannot be read"):
        read_header(path)
