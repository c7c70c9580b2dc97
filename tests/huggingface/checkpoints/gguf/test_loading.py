"""Language models from GGUF files, against those that transformers dequantizes."""

from __future__ import annotations

import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader
from gguf.quants import dequantize

from coreai_onnx.composites.few_bit_weights import dequantized
from coreai_onnx.errors import ModelSourceError, SaveError
from coreai_onnx.huggingface.checkpoints.experts import PackedExperts
from coreai_onnx.huggingface.checkpoints.gguf.header import read_header
from coreai_onnx.huggingface.checkpoints.gguf.loading import PackedEmbedding, read_config
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.sources import load_source
from coreai_onnx.huggingface.transformers_names import load_gguf_checkpoint
from coreai_onnx.messages import reported_to
from coreai_onnx.model.files import mapped_tensors, saving
from coreai_onnx.runtime.sessions.session import Session
from tests.huggingface.checkpoints.gguf.files import CONFIGS, LAYERS, MIXTURES, TOKENS, write_model
from tests.support.tolerances import assert_close

IDS = torch.tensor([[1, 5, 9, 2, 26, 7]])


def dequantized_model(path: Path) -> transformers.PreTrainedModel:
    """Return the model with the weights that transformers dequantizes."""
    model = transformers.AutoModelForCausalLM.from_config(read_config(path))
    model_type = model.config.model_type
    if model_type == "mixtral":  # transformers has its names for those of Llama only
        model.config.model_type = "llama"
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    model.config.model_type = model_type
    tensors = {n: x for n, x in tensors.items() if "_exps" not in n} | experts_of(path)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model.eval()


def experts_of(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights of experts as gguf dequantizes them, by their names in transformers."""
    values = {
        tensor.name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))
        for tensor in GGUFReader(path).tensors
        if "_exps." in tensor.name
    }
    weights = {}
    for i in range(LAYERS) if values else ():
        down, gate, up = (values[f"blk.{i}.ffn_{x}_exps.weight"] for x in ("down", "gate", "up"))
        weights[f"model.layers.{i}.mlp.experts.down_proj"] = down
        weights[f"model.layers.{i}.mlp.experts.gate_up_proj"] = torch.cat([gate, up], 1)
    return weights


def logits_of(folder: Path, *, kernels: bool) -> np.ndarray:
    """Return the logits of an exported folder for `IDS`."""
    feeds = {"input_ids": IDS.numpy(), "attention_mask": np.ones(IDS.shape, np.int64)}
    feeds["position_ids"] = np.arange(IDS.shape[1])[None]
    past = np.zeros((1, 2, 0, 64), np.float32)
    feeds |= {f"past_key_values.{i}.{x}": past for i in (0, 1) for x in ("key", "value")}
    return Session(folder / "model.onnx", kernels=kernels).stream().run(**feeds)["logits"]


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


@pytest.mark.parametrize(
    "kinds", [(Type.Q4_K,), (Type.Q4_K, Type.Q6_K, Type.Q8_0), (Type.IQ3_S, Type.IQ2_XXS)]
)
@pytest.mark.parametrize("architecture", MIXTURES)
@torch.no_grad()
def test_experts_keep_their_codes(
    architecture: str, kinds: tuple[Type, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several types, the gates have another one than the projections beside them."""
    monkeypatch.setattr(mapped_tensors, "LARGE", 1 << 10)  # codes wait in the scratch file
    path, folder = tmp_path / "tiny.gguf", tmp_path / "folder"
    write_model(path, architecture, kinds, experts=True)
    model = load_source(path).model
    for name, expected in experts_of(path).items():
        module = model.get_submodule(name.rpartition(".")[0])
        assert isinstance(module, PackedExperts)
        matrices = module.matrices[name.rpartition(".")[2]]
        rows = [
            dequantized(module.weight_parts(f"{of}_"), x["bits"], x["scale_bits"], torch.float32)
            for of, x in matrices.items()
        ]
        assert torch.equal(torch.cat(rows, 1).flatten(-2), expected)
    exported = export_model(path, folder)
    products = [node.op_type.startswith("gather_mm_nbits") for node in exported.program.model.graph]
    assert sum(products) == LAYERS * (2 if len(kinds) == 1 else 3)
    expected_logits = dequantized_model(path)(IDS).logits
    for kernels in (False, True):
        assert_close(logits_of(folder, kernels=kernels), expected_logits)


def test_experts_of_floating_point_stay_so(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(path, "qwen3moe", (Type.F16,), experts=True)
    weights = load_source(path).model.state_dict()
    for name, expected in experts_of(path).items():
        assert torch.equal(weights[name], expected)
    write_model(path, "qwen3moe", (Type.F16, Type.Q8_0), experts=True)
    with pytest.raises(ModelSourceError, match=r"gate_exps.* F16, Q8_0, of which only some have"):
        load_source(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"ffn_up_exps", b"ffn_up_expo", r"gate_exps.weight is \[4, 512, 256\] in the file, \[4"),
        (b"ffn_down_exps", b"ffn_down_expo", "has no tensor for model.layers.0.mlp.experts.down"),
        (b"expert_count\4\0\0\0\4", b"expert_count\4\0\0\0\3", r"file, \[3, 256\] in the model"),
        (b"expert_used_count\4\0\0\0\2", b"expert_used_count\4\0\0\0\5", "5 of 4 experts"),
    ],
)
def test_damaged_experts_are_an_error(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(path, "llama", (Type.Q4_0,), experts=True)
    with pytest.raises(ModelSourceError, match=message):
        load_source(damaged(path, tmp_path / "damaged.gguf", old, new))


def test_mixtures_that_were_not_compared_with_llama_cpp_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(path, "qwen2moe", (Type.Q4_0,), experts=True)
    path.write_bytes(path.read_bytes().replace(b"qwen2moe", b"nemotron"))
    with pytest.raises(ModelSourceError, match="mixtures of experts of 'nemotron' are not supp"):
        load_source(path)


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


@pytest.mark.parametrize("stage", ["load", "export", "lower", "optimize", "save"])
def test_an_interrupt_leaves_nothing(
    stage: str, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_tensors, "LARGE", 1 << 10)

    def interrupt(begun: str) -> None:
        if begun == stage:
            raise KeyboardInterrupt

    with reported_to(interrupt), pytest.raises(KeyboardInterrupt):
        export_model(model_file, tmp_path / "folder", check=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("after", [1, 10])
def test_an_interrupt_between_weights_leaves_nothing(
    after: int, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While codes are moved from the scratch file to the result."""
    monkeypatch.setattr(mapped_tensors, "LARGE", 1 << 10)
    calls = iter(range(after))

    def interrupted(*arguments: Any) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        mapped_tensors.move(*arguments)

    monkeypatch.setattr(saving, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_model(model_file, tmp_path / "folder", check=False, external_data=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_full_disk_leaves_nothing(
    share: float, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scratch file exceeds the limit while weights are read, or only the result does."""
    monkeypatch.setattr(mapped_tensors, "LARGE", 1 << 10)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * model_file.stat().st_size), limit[1]))
    try:
        with pytest.raises(SaveError, match=r"cannot write.*: File too large"):
            export_model(model_file, tmp_path / "folder", check=False, external_data=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not list(tmp_path.iterdir())


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
